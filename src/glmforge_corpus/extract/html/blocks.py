"""A page as blocks: runs of text between two block-level boundaries, without what cannot be main text.

What is dropped with all it contains: forms' controls, hidden elements, navigation, captions, readers' comments, and
elements whose class, id or role says that they stand around the content ("sidebar", "related", "cookie"). Such names
lie at times ("page-with-sidebar"), so an element that holds much of the page's prose stays; one with a weak word
("widget", "slider") stays if it holds a sentence that is no link, and so does a hidden paragraph (of an accordion).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.extract.html import hints, tags
from glmforge_corpus.extract.html.scan import Nodes
from glmforge_corpus.extract.html.tags import TAG

_TEXT, _SKIPPED, _BLOCK, _HEADING, _PROSE = tags.TEXT, tags.SKIPPED, tags.BLOCK, tags.HEADING, tags.PROSE
_ARTICLE, _BOILERPLATE, _COMMENTS, _HIDDEN, _POST = (
    hints.ARTICLE, hints.BOILERPLATE, hints.COMMENTS, hints.HIDDEN, hints.POST,
)  # fmt: skip
_WEAK, _FORUM = hints.WEAK, hints.FORUM
_A, _P, _BR, _HTML, _BODY = TAG["a"], TAG["p"], TAG["br"], TAG["html"], TAG["body"]
_ARTICLE_TAG, _MAIN_TAG = TAG["article"], TAG["main"]
_FOOTER, _ASIDE, _HEADER = TAG["footer"], TAG["aside"], TAG["header"]
_FIGCAPTION, _NOSCRIPT = TAG["figcaption"], TAG["noscript"]

LEAST_TEXT = 100
"""Bytes of text (a long sentence) below which a page's words for its elements are not believed."""

LONG_PARAGRAPH = 200
"""Bytes of text from which a paragraph is prose regardless of its class."""


SOME_PROSE = 80
"""Bytes of prose (a sentence) from which a weak word for an element is not believed."""


class Blocks(NamedTuple):
    """Runs of text between block-level boundaries, in order, each `[n]`.

    Attributes:
        first, last: its first text node and the one after its last.
        element: the block-level element that directly holds it.
        text: bytes that are no white space; entities count as they are spelled.
        links: of these, how many are inside links.
        stops: marks that end or divide sentences.
    """

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    element: NDArray[np.int32]
    text: NDArray[np.int32]
    links: NDArray[np.int32]
    stops: NDArray[np.int32]


@compiled
def _measure(html, tag, kind, parent, begin, end, stop):  # type: ignore[no-untyped-def]
    """Per node, summed over all nodes before it: bytes of text, of linked text, of text in prose elements."""
    n = len(tag)
    text, links, prose = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    in_link, in_prose = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    skip_until = 0
    for i in range(n):
        text[i + 1], links[i + 1], prose[i + 1] = text[i], links[i], prose[i]
        up = parent[i]
        in_link[i] = tag[i] == _A or (up >= 0 and in_link[up])
        in_prose[i] = (kind[i] & _PROSE) != 0 or (up >= 0 and in_prose[up])
        if tag[i] != _TEXT:
            if kind[i] & _SKIPPED:
                skip_until = max(skip_until, stop[i])
            continue
        if i < skip_until:
            continue
        visible = 0
        for j in range(begin[i], end[i]):
            visible += html[j] > 32
            if html[j] == 38 and html[j + 1] == 110 and html[j + 2] == 98:  # &nbsp;
                visible -= 6
        text[i + 1] += visible
        if in_link[i]:
            links[i + 1] += visible
        elif in_prose[i]:
            prose[i + 1] += visible
    return text, links, prose


@compiled
def _dropped(tag, kind, parent, stop, hint, text, links, prose, names, comments, hidden):  # type: ignore[no-untyped-def]
    """`[n]`: true for nodes that cannot be main text."""
    n = len(tag)
    drop = np.zeros(n, np.bool_)
    in_article = np.zeros(n, np.bool_)
    all_prose = max(prose[n], 1)
    all_plain = max(text[n] - links[n], 1)
    i = 0
    while i < n:
        number, up = tag[i], parent[i]
        if number == _TEXT:
            i += 1
            continue
        in_article[i] = number in (_ARTICLE_TAG, _MAIN_TAG) or (up >= 0 and in_article[up])
        gone = (kind[i] & _SKIPPED) != 0
        named = number != _HTML and number != _BODY and not kind[i] & _HEADING
        if not gone and named:
            own_prose, own_text = prose[stop[i]] - prose[i], text[stop[i]] - text[i]
            own_plain = own_text - links[stop[i]] + links[i]
            share = own_prose / all_prose
            plain = own_plain / all_plain
            if hidden and (hint[i] & _HIDDEN or number == _NOSCRIPT):
                if hint[i] & _BOILERPLATE:
                    gone = share < 0.8 or plain < 0.8
                else:
                    is_text = own_prose >= LONG_PARAGRAPH and own_plain >= 0.8 * own_text
                    gone = share < 0.5 and not is_text
            elif hint[i] & _COMMENTS:
                is_all = plain >= 0.9 and share >= 0.9
                gone = comments and not hint[i] & (_ARTICLE | _POST) and not is_all and kind[i] & _BLOCK
            elif number == _FIGCAPTION:
                gone = names
            elif names:
                is_text = (hint[i] & (_ARTICLE | _POST)) != 0 or (number == _P and own_prose > LONG_PARAGRAPH)
                if number in (_FOOTER, _ASIDE) or (number == _HEADER and not in_article[i]):
                    gone = share < 0.8 or plain < 0.5
                elif hint[i] & _BOILERPLATE and number not in (_ARTICLE_TAG, _MAIN_TAG):
                    gone = not is_text and share < 0.4 and plain < 0.5
                elif hint[i] & _WEAK and number not in (_ARTICLE_TAG, _MAIN_TAG):
                    is_text = is_text or (own_prose >= SOME_PROSE and own_plain >= 0.6 * own_text)
                    gone = not is_text and share < 0.4 and plain < 0.5
        if gone:
            drop[i : stop[i]] = True
            i = stop[i]
        else:
            i += 1
    return drop


@compiled
def _cut(html, tag, kind, parent, begin, end, drop, text, links):  # type: ignore[no-untyped-def]
    n = len(tag)
    first, last, element = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    bytes_, linked, stops = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int32)
    holder = np.zeros(n, np.int32)
    count, fresh, breaks = 0, True, 0
    for i in range(n):
        if tag[i] != _TEXT:
            block = (kind[i] & _BLOCK) != 0
            holder[i] = i if block or parent[i] < 0 else holder[parent[i]]
            fresh = fresh or block
            breaks += tag[i] == _BR
            if breaks >= 2:
                fresh = True
            continue
        if drop[i]:
            continue
        amount = text[i + 1] - text[i]
        if amount == 0:
            continue
        breaks = 0
        holding = holder[parent[i]] if parent[i] >= 0 else 0
        if fresh or count == 0 or element[count - 1] != holding:
            first[count], element[count] = i, holding
            count += 1
            fresh = False
        block = count - 1
        last[block] = i + 1
        bytes_[block] += amount
        linked[block] += links[i + 1] - links[i]
        for j in range(begin[i], end[i]):
            byte = html[j]
            stops[block] += byte == 46 or byte == 44 or byte == 33 or byte == 63 or byte == 59 or byte == 58
            # Full stop and comma of Chinese and Japanese: e3 80 81, e3 80 82, ef bc 8c.
            if (byte == 0x80 and html[j - 1] == 0xE3 and (html[j + 1] == 0x81 or html[j + 1] == 0x82)) or (
                byte == 0xBC and html[j - 1] == 0xEF and html[j + 1] == 0x8C
            ):
                stops[block] += 1
    return first[:count], last[:count], element[:count], bytes_[:count], linked[:count], stops[:count]


class Without(NamedTuple):
    """What is dropped beside what is never text: elements with names of boilerplate, readers' comments, what is not
    shown."""

    names: bool = True
    comments: bool = True
    hidden: bool = True


class Measures(NamedTuple):
    """Bytes of text before each node, `[n + 1]`: of all, of links, of prose elements outside links."""

    text: NDArray[np.int64]
    links: NDArray[np.int64]
    prose: NDArray[np.int64]


def measure(html: NDArray[np.uint8], nodes: Nodes) -> Measures:
    """How much text a page has where."""
    return Measures(*_measure(html, nodes.tag, nodes.kind, nodes.parent, nodes.begin, nodes.end, nodes.stop))


def cut_blocks(
    html: NDArray[np.uint8], nodes: Nodes, measures: Measures, without: Without
) -> tuple[Blocks, NDArray[np.bool_]]:
    """The blocks of a page and, `[n]`, the nodes that were dropped: what is never text, and what `without` says."""
    tag, kind, parent, stop, begin, end, hint = nodes
    text, links, prose = measures
    drop = _dropped(tag, kind, parent, stop, hint, text, links, prose, *without)
    return Blocks(*_cut(html, tag, kind, parent, begin, end, drop, text, links)), drop


@compiled
def _said_by_readers(stop, hint, text, links):  # type: ignore[no-untyped-def]
    """Element 0 is the page, 1 its head: classes of the page tell of a forum, but never make it one comment."""
    n = len(stop)
    plain = text - links
    comments, forum = 0, 0
    for i in range(n):
        if hint[i] & _FORUM:
            forum = max(forum, plain[stop[i]] - plain[i])
    i = 0
    while i < n:
        if hint[i] & _COMMENTS and i > 2:
            comments += plain[stop[i]] - plain[i]
            i = stop[i]
        else:
            i += 1
    return comments / max(plain[n], 1), forum / max(plain[n], 1)


def said_by_readers(nodes: Nodes, measures: Measures) -> tuple[float, float]:
    """Shares of the page's text in comments, and in an element that is called a forum."""
    comments, forum = _said_by_readers(nodes.stop, nodes.hint, measures.text, measures.links)
    return float(comments), float(forum)
