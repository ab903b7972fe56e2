"""A serialised document as flat arrays of nodes: the form in which compiled loops can look at a page.

A page is parsed by lexbor (through resiliparse), which repairs it as browsers do, and written out again: that
text has an end tag for every element, quotes around every attribute and four entities, so that a scanner of a few
rules reads it exactly. Walking lexbor's tree node by node from Python costs seven times what all of this does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled, non_allocating
from glmforge_corpus.extract.html import hints, tags

_LESS, _GREATER, _SLASH, _BANG, _QUOTE, _EQUALS = ord("<"), ord(">"), ord("/"), ord("!"), ord('"'), ord("=")
_HYPHEN, _LOW_LINE, _COLON = ord("-"), ord("_"), ord(":")
_VOID, _RAW, _OTHER, _TEXT = tags.VOID, tags.RAW, tags.OTHER, tags.TEXT
_HIDDEN, _SEPARATOR = hints.HIDDEN, hints.SEPARATOR
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


class Tables(NamedTuple):
    """What the scanner looks things up in. Handed over with each call, because numba caches compiled code by the
    file that it stands in: a table of another module would stay as it was on the first day."""

    name_hashes: NDArray[np.uint64] = tags.NAME_HASHES
    name_tags: NDArray[np.uint8] = tags.NAME_TAGS
    properties: NDArray[np.uint8] = tags.PROPERTIES
    symbols: NDArray[np.uint8] = hints.SYMBOLS
    words: NDArray[np.uint16] = hints.TRANSITIONS
    word_ends: NDArray[np.uint8] = hints.ENDS
    describing: NDArray[np.uint8] = hints.DESCRIBING_WORDS
    styles: NDArray[np.uint16] = hints.STYLE_TRANSITIONS
    style_ends: NDArray[np.uint8] = hints.STYLE_ENDS


_TABLES = Tables()


class Nodes(NamedTuple):
    """Elements and texts of a document in the order of their beginnings, each `[n]`.

    Attributes:
        tag: number of `tags.NAMES`; `tags.TEXT` for text.
        kind: its properties, bits of `tags`.
        parent: index of the element around it, -1 for none.
        stop: index after its last descendant.
        begin, end: of a text its bytes; of an element its attributes.
        hint: bits of `hints`.
    """

    tag: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    parent: NDArray[np.int32]
    stop: NDArray[np.int32]
    begin: NDArray[np.int32]
    end: NDArray[np.int32]
    hint: NDArray[np.uint8]


@non_allocating
def _describes(html, i, end, describing):  # type: ignore[no-untyped-def]
    """Whether the name at `i` begins with a word and a "-" that make the rest tell what an element is about."""
    for w in range(describing.shape[0]):
        j = 0
        while describing[w, j] and i + j < end and html[i + j] | 32 == describing[w, j]:
            j += 1
        if describing[w, j] == 0 and i + j < end and (html[i + j] == _HYPHEN or html[i + j] == _LOW_LINE):
            return True
    return False


@non_allocating
def _match(html, begin, end, symbols, transitions, ends, describing):  # type: ignore[no-untyped-def]
    """Bits of the words in a value, as if separators stood around it."""
    bits = np.uint8(0)
    state = transitions[0, _SEPARATOR]
    previous_lower = False
    previous_separator = True
    starts, passed = True, False  # at the beginning of a name; in a part of a name that does not count
    for i in range(begin, end):
        byte = html[i]
        symbol = symbols[byte]
        if byte <= 32:
            starts, passed = True, False
        elif passed:
            continue
        elif starts:
            starts = False
            passed = _describes(html, i, end, describing)
            if passed:
                continue
        elif byte == _COLON and len(describing):  # a variant of a style, such as "print:hidden"
            passed = True
            state = transitions[0, _SEPARATOR]
            previous_separator, previous_lower = True, False
            continue
        elif byte == _HYPHEN and html[i - 1] == _HYPHEN and len(describing):  # a modifier, such as "section--ads"
            passed = True
            continue
        if symbol == _SEPARATOR:
            if not previous_separator:
                state = transitions[state, _SEPARATOR]
                bits |= ends[state]
            previous_separator, previous_lower = True, False
            continue
        upper = 65 <= byte <= 90
        if upper and previous_lower:
            state = transitions[state, _SEPARATOR]
            bits |= ends[state]
        state = transitions[state, symbol]
        bits |= ends[state]
        previous_lower, previous_separator = not upper, False
    if not previous_separator:
        state = transitions[state, _SEPARATOR]
        bits |= ends[state]
    return bits


@non_allocating
def _equals(html, begin, end, word):  # type: ignore[no-untyped-def]
    if end - begin != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110
        if html[begin + i] != word[i]:
            return False
    return True


_CLASS, _ID, _ROLE, _STYLE = (np.frombuffer(name, np.uint8) for name in (b"class", b"id", b"role", b"style"))
_ITEMTYPE = np.frombuffer(b"itemtype", np.uint8)
_ITEMPROP, _HIDDEN_NAME = np.frombuffer(b"itemprop", np.uint8), np.frombuffer(b"hidden", np.uint8)
_ARIA_HIDDEN, _TRUE = np.frombuffer(b"aria-hidden", np.uint8), np.frombuffer(b"true", np.uint8)


@non_allocating
def _is_naming(html, begin, end):  # type: ignore[no-untyped-def]
    """Whether an attribute says in words what its element is."""
    length = end - begin
    if length == 2:
        return _equals(html, begin, end, _ID)
    if length == 4:
        return _equals(html, begin, end, _ROLE)
    if length == 5:
        return _equals(html, begin, end, _CLASS)
    return length == 8 and _equals(html, begin, end, _ITEMPROP)


@non_allocating
def _attributes(html, i, tables):  # type: ignore[no-untyped-def]
    """(place of the ">" of a start tag whose attributes begin at `i`, bits of hints in them)."""
    bits = np.uint8(0)
    size = len(html)
    while i < size and html[i] != _GREATER:
        name = i
        while i < size and html[i] != _EQUALS and html[i] != _GREATER and html[i] != 32:
            i += 1
        name_end = i
        if i >= size or html[i] != _EQUALS:  # no value: a space, or the end of the tag
            i += i < size and html[i] == 32
            continue
        value = i + 2
        i = value
        while i < size and html[i] != _QUOTE:
            i += 1
        if _is_naming(html, name, name_end):
            bits |= _match(html, value, i, tables.symbols, tables.words, tables.word_ends, tables.describing)
        elif _equals(html, name, name_end, _ITEMTYPE):
            bits |= _match(html, value, i, tables.symbols, tables.words, tables.word_ends, tables.describing[:0])
        elif _equals(html, name, name_end, _STYLE):
            bits |= _match(html, value, i, tables.symbols, tables.styles, tables.style_ends, tables.describing[:0])
        elif _equals(html, name, name_end, _HIDDEN_NAME) or (
            _equals(html, name, name_end, _ARIA_HIDDEN) and _equals(html, value, i, _TRUE)
        ):
            bits |= np.uint8(_HIDDEN)
        i += 1
        i += i < size and html[i] == 32
    return i, bits


@non_allocating
def _tag_of(digest, tables):  # type: ignore[no-untyped-def]
    place = digest & np.uint64(511)
    while tables.name_hashes[place] != np.uint64(0):
        if tables.name_hashes[place] == digest:
            return tables.name_tags[place]
        place = (place + np.uint64(1)) & np.uint64(511)
    return np.uint8(_OTHER)


@non_allocating
def _skip_declaration(html, i):  # type: ignore[no-untyped-def]
    """Place after a comment or a document type that begins at `i`."""
    size = len(html)
    if i + 3 < size and html[i + 2] == 45 and html[i + 3] == 45:
        i += 4
        while i < size and not (html[i] == _GREATER and html[i - 1] == 45 and html[i - 2] == 45):
            i += 1
        return i + 1
    while i < size and html[i] != _GREATER:
        i += 1
    return i + 1


@non_allocating
def _raw_end(html, i, name, name_end):  # type: ignore[no-untyped-def]
    """Place of the end tag of an element whose content is no markup."""
    size, length = len(html), name_end - name
    while i < size:
        if html[i] == _LESS and i + 2 + length <= size and html[i + 1] == _SLASH:
            same = True
            for j in range(length):
                if html[i + 2 + j] != html[name + j]:
                    same = False
                    break
            if same:
                return i
        i += 1
    return size


@compiled
def _scan(html, tables):  # type: ignore[no-untyped-def]
    size = len(html)
    capacity = 2
    for byte in html:
        capacity += 2 * (byte == _LESS)
    tag, kind, hint = np.empty(capacity, np.uint8), np.zeros(capacity, np.uint8), np.zeros(capacity, np.uint8)
    parent, stop = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    begin, end = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    count, current, i = 0, -1, 0
    while i < size:
        if html[i] != _LESS:
            tag[count], parent[count], begin[count] = _TEXT, current, i
            while i < size and html[i] != _LESS:
                i += 1
            end[count] = i
            stop[count] = count + 1
            count += 1
            continue
        if i + 1 < size and (html[i + 1] == _BANG or html[i + 1] == 63):
            i = _skip_declaration(html, i)
            continue
        if i + 1 < size and html[i + 1] == _SLASH:
            while i < size and html[i] != _GREATER:
                i += 1
            i += 1
            if current >= 0:
                stop[current] = count
                current = parent[current]
            continue
        name = i + 1
        i = name
        digest = _OFFSET
        while i < size and html[i] != 32 and html[i] != _GREATER:
            digest = (digest ^ np.uint64(html[i])) * _PRIME
            i += 1
        name_end = i
        if i < size and html[i] == 32:
            i += 1
        number = _tag_of(digest, tables)
        properties = tables.properties[number]
        tag[count], parent[count], begin[count], stop[count] = number, current, i, count + 1
        kind[count] = properties
        i, hint[count] = _attributes(html, i, tables)
        end[count] = min(i, size)
        i += 1
        element = count
        count += 1
        if properties & _VOID:
            continue
        current = element
        if properties & _RAW:
            close = _raw_end(html, i, name, name_end)
            tag[count], parent[count], begin[count], end[count], stop[count] = _TEXT, current, i, close, count + 1
            count += 1
            i = close
    while current >= 0:
        stop[current] = count
        current = parent[current]
    return tag[:count], kind[:count], parent[:count], stop[:count], begin[:count], end[:count], hint[:count]


def scan(html: NDArray[np.uint8]) -> Nodes:
    """The nodes of a document as lexbor serialises it; comments and document types are omitted."""
    return Nodes(*_scan(html, _TABLES))
