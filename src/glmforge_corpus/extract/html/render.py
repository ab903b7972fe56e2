"""Blocks of a page to plain text with light Markdown: headings, lists, tables and code keep their form."""

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.extract.html import tags
from glmforge_corpus.extract.html.choose import Main
from glmforge_corpus.extract.html.scan import Nodes
from glmforge_corpus.extract.html.tags import TAG

_TEXT, _HEADING, _CELL = tags.TEXT, tags.HEADING, tags.CELL
_PRE, _LISTING, _LI, _UL, _OL = TAG["pre"], TAG["listing"], TAG["li"], TAG["ul"], TAG["ol"]
_TR, _BR, _H1 = TAG["tr"], TAG["br"], TAG["h1"]
_SPACE, _NEWLINE = 32, 10


@compiled
def _entity(html, i, end):  # type: ignore[no-untyped-def]
    """(byte or 160 for a no-break space, length) of one of the four entities of a serialised text; else ("&", 1)."""
    if i + 3 < end and html[i + 2] == 116 and html[i + 3] == 59:  # &lt; &gt;
        if html[i + 1] == 108:
            return 60, 4
        if html[i + 1] == 103:
            return 62, 4
    if i + 4 < end and html[i + 1] == 97 and html[i + 2] == 109 and html[i + 3] == 112 and html[i + 4] == 59:
        return 38, 5
    if i + 5 < end and html[i + 1] == 110 and html[i + 2] == 98 and html[i + 5] == 59:
        return 32, 6
    return 38, 1


@compiled
def _put(out, at, data):  # type: ignore[no-untyped-def]
    for byte in data:
        out[at] = byte
        at += 1
    return at


_FENCE = np.frombuffer(b"```", np.uint8)
_BULLET, _BAR = np.frombuffer(b"- ", np.uint8), np.frombuffer(b" | ", np.uint8)


@compiled
def _put_text(html, tag, begin, end, drop, first, last, preformatted, out, at):  # type: ignore[no-untyped-def]
    """A block's text: white space collapsed unless preformatted, line breaks kept."""
    start = at
    space = False
    i = first
    while i < last:
        if drop[i] or tag[i] != _TEXT:
            if tag[i] == _BR and not drop[i] and at > start:
                while at > start and out[at - 1] == _SPACE:
                    at -= 1
                out[at] = _NEWLINE
                at += 1
                space = False
            i += 1
            continue
        j = begin[i]
        while j < end[i]:
            byte, length = html[j], 1
            if byte == 38:
                byte, length = _entity(html, j, end[i])
            j += length
            if byte <= 32 and not preformatted:
                space = True
                continue
            if space and at > start and out[at - 1] != _NEWLINE:
                out[at] = _SPACE
                at += 1
            space = False
            out[at] = byte
            at += 1
        i += 1
    while at > start and out[at - 1] <= 32:
        at -= 1
    return at


@compiled
def _surroundings(tag, parent):  # type: ignore[no-untyped-def]
    """Per node: the table row and the list item around it (-1: none), how deep in lists; per item: its number."""
    n = len(tag)
    row, item, depth = np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.zeros(n, np.int32)
    number, items = np.zeros(n, np.int32), np.zeros(n, np.int32)
    for i in range(n):
        up = parent[i]
        if up >= 0:
            row[i], item[i], depth[i] = row[up], item[up], depth[up]
        if tag[i] == _TR:
            row[i] = i
        elif tag[i] == _UL or tag[i] == _OL:
            depth[i] += 1
        elif tag[i] == _LI:
            item[i] = i
            if up >= 0:
                items[up] += 1
                number[i] = items[up]
    return row, item, depth, number


@compiled
def _render(html, tag, kind, parent, begin, end, drop, first, last, element, keep):  # type: ignore[no-untyped-def]
    out = np.empty(2 * len(html) + 64 * (len(first) + 1), np.uint8)
    at = 0
    rows, items, depths, numbers = _surroundings(tag, parent)
    previous_row = previous_item = -1
    for b in range(len(first)):
        if not keep[b]:
            continue
        holder = element[b]
        number = tag[holder]
        row = rows[holder] if kind[holder] & _CELL else -1
        item = items[holder]
        outer = parent[item] if item >= 0 else -1
        pre = number in (_PRE, _LISTING)
        before = at
        if at:
            if row >= 0 and row == previous_row:
                at = _put(out, at, _BAR)
            elif (row >= 0 and previous_row >= 0 and parent[row] == parent[previous_row]) or (
                item >= 0 and previous_item >= 0 and item != previous_item
            ):
                out[at] = _NEWLINE
                at += 1
            else:
                out[at] = out[at + 1] = _NEWLINE
                at += 2
        if pre:
            at = _put(out, at, _FENCE)
            out[at] = _NEWLINE
            at += 1
        elif kind[holder] & _HEADING:
            for _ in range(number - _H1 + 1):
                out[at] = 35
                at += 1
            out[at] = _SPACE
            at += 1
        elif item >= 0 and item != previous_item:
            for _ in range(2 * min(max(depths[item] - 1, 0), 8)):
                out[at] = _SPACE
                at += 1
            if outer >= 0 and tag[outer] == _OL:
                value = numbers[item]
                digits = 1
                while 10**digits <= value:
                    digits += 1
                for d in range(digits - 1, -1, -1):
                    out[at] = 48 + (value // 10**d) % 10
                    at += 1
                out[at], out[at + 1] = 46, _SPACE
                at += 2
            else:
                at = _put(out, at, _BULLET)
        bare = at
        at = _put_text(html, tag, begin, end, drop, first[b], last[b], pre, out, at)
        if at == bare:
            at = before
            continue
        if pre:
            out[at] = _NEWLINE
            at = _put(out, at + 1, _FENCE)
        previous_row, previous_item = row, item
    return out[:at]


def render(html: NDArray[np.uint8], nodes: Nodes, main: Main) -> bytes:
    """The kept blocks as UTF-8 text."""
    blocks = main.blocks
    return bytes(
        _render(
            html, nodes.tag, nodes.kind, nodes.parent, nodes.begin, nodes.end, main.drop,
            blocks.first, blocks.last, blocks.element, main.keep,
        )
    )  # fmt: skip
