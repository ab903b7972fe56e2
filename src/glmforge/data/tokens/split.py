r"""The split rule as a compiled loop over UTF-8.

A byte-level BPE tokenizer first cuts text into pieces that no token crosses. The rule is a regular expression
(`characters.SPLIT_PATTERN`); engines try its seven alternatives in turn at every place, which takes most of the time
of an encoder. Here it is a scanner that looks at each character about once and returns where the piece ends:

    's 't 'm 'd 're 've 'll     in any case; the long s (U+017F) is an s to a regular expression
    [^\r\n\p{L}\p{N}]?\p{L}+    letters, with one character before them that is no line end, letter or number
    \p{N}{1,3}                  up to three numbers
     ?[^\s\p{L}\p{N}]+[\r\n]*   anything else that is no space, with a blank before and line ends behind
    \s*[\r\n]+                  spaces up to the last line end among them
    \s+(?!\S)                   spaces but the last, which belongs to what follows
    \s+                         a space left alone

The text must be UTF-8; of other bytes it is only said that the scanner stays within `stop`.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import character_at
from glmforge.data.compiled import compiled, non_allocating
from glmforge.data.tokens.characters import LETTER, LINE_END, NUMBER, OTHER, SPACE


@non_allocating
def piece_end(text: NDArray[np.uint8], start: int, stop: int, classes: NDArray[np.uint8]) -> int:
    """Where the piece that begins at `start` ends, in a text that ends at `stop`."""
    point, size = character_at(text, start, stop)
    kind = classes[point]
    if point == 0x27:
        end = _contraction_end(text, start, stop)
        if end:
            return end
    if kind == LETTER:
        return _run_end(text, start + size, stop, classes, LETTER)
    if kind == NUMBER:
        return _number_end(text, start + size, stop, classes)
    place = start + size
    if place < stop and kind != LINE_END:
        point2, size2 = character_at(text, place, stop)
        kind2 = classes[point2]
        if kind2 == LETTER:
            return _run_end(text, place + size2, stop, classes, LETTER)
        if point == 0x20 and kind2 == OTHER:
            kind, place = kind2, place + size2
    if kind == OTHER:
        place = _run_end(text, place, stop, classes, OTHER)
        while place < stop and (text[place] == 0x0A or text[place] == 0x0D):
            place += 1
        return place
    return _spaces_end(text, start, stop, classes)


@non_allocating
def _run_end(text: NDArray[np.uint8], place: int, stop: int, classes: NDArray[np.uint8], kind: int) -> int:
    while place < stop:
        first = text[place]
        if first < 0x80:
            if classes[first] != kind:
                return place
            place += 1
        else:
            point, size = character_at(text, place, stop)
            if classes[point] != kind:
                return place
            place += size
    return place


@non_allocating
def _number_end(text: NDArray[np.uint8], place: int, stop: int, classes: NDArray[np.uint8]) -> int:
    for _ in range(2):
        if place >= stop:
            break
        point, size = character_at(text, place, stop)
        if classes[point] != NUMBER:
            break
        place += size
    return place


@non_allocating
def _spaces_end(text: NDArray[np.uint8], start: int, stop: int, classes: NDArray[np.uint8]) -> int:
    """After the run's last line end; or before its last space, if something follows; or after it."""
    place = start
    last = after_line_end = -1
    while place < stop:
        point, size = character_at(text, place, stop)
        if classes[point] < SPACE:
            break
        last, place = place, place + size
        if classes[point] == LINE_END:
            after_line_end = place
    if after_line_end >= 0:
        return after_line_end
    return place if place == stop or last == start else last


@non_allocating
def _contraction_end(text: NDArray[np.uint8], start: int, stop: int) -> int:
    """Where the contraction at the apostrophe `start` ends, or 0."""
    if start + 1 >= stop:
        return 0
    first = text[start + 1] | 0x20
    if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s t m d
        return start + 2
    if start + 2 >= stop:
        return 0
    if text[start + 1] == 0xC5 and text[start + 2] == 0xBF:  # the long s
        return start + 3
    second = text[start + 2] | 0x20
    if ((first == 0x72 or first == 0x76) and second == 0x65) or (first == 0x6C and second == 0x6C):  # re ve ll
        return start + 3
    return 0


@compiled
def piece_borders(text: NDArray[np.uint8], start: int, stop: int, classes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Ends of all pieces of one text."""
    ends = np.empty(stop - start, np.int64)
    number = 0
    while start < stop:
        start = piece_end(text, start, stop, classes)
        ends[number] = start
        number += 1
    return ends[:number].copy()
