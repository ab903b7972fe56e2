"""Compiled loops over the lines of a batch's texts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled

MAX_MENU_WIDTH = 30
"""Of a menu's item in columns; a character of three bytes and more (CJK) takes two."""

MAX_MENU_WORDS = 4
MAX_WORD_CJK = 4

_ENDS = np.zeros(256, np.bool_)
_ENDS[np.frombuffer(b".!?,;:", np.uint8)] = True
_BAR = ord("|")
_DECORATION = np.zeros(256, np.bool_)
_DECORATION[np.frombuffer(b" \t\r*#>|+-:.!?[]()", np.uint8)] = True
_NO_ITEM = np.zeros(256, np.bool_)
_NO_ITEM[np.frombuffer(b'\t(){}[]=<>;$#\\@`"*_%', np.uint8)] = True


@compiled
def find_lines(text: NDArray[np.uint8], offsets: NDArray[np.int64], wanted: NDArray[np.bool_]) -> Any:
    """`[lines, 2]`: begin and end (line end excluded) of all lines of the texts wanted; `[lines]`: their text."""
    bounds = np.empty((1024, 2), np.int64)
    document = np.empty(1024, np.int32)
    count = 0
    for index in range(len(offsets) - 1):
        line, stop = offsets[index], offsets[index + 1]
        if not wanted[index]:
            continue
        for at in range(line, stop + 1):
            if (at < stop and text[at] != 10) or (at == stop and line == stop):
                continue
            if count == len(document):
                bounds = np.concatenate((bounds, np.empty_like(bounds)))
                document = np.concatenate((document, np.empty_like(document)))
            bounds[count, 0], bounds[count, 1] = line, at
            document[count] = index
            count += 1
            line = at + 1
    return bounds[:count].copy(), document[:count].copy()


@compiled
def _is_decoration(text: NDArray[np.uint8], at: int) -> bool:
    """Whether a sign of several bytes that begins at `at` is a dash, an arrow, a bullet or the like."""
    first, second, third = text[at], text[at + 1], text[at + 2]
    if first == 0xC2:
        return bool(second == 0xAB or second == 0xBB or second == 0xB7 or second == 0xA0)
    if first == 0xE2:  # general punctuation, arrows, box drawing, shapes
        return bool(second == 0x80 or second == 0x86 or 0x94 <= second <= 0x97)
    if first == 0xE3:
        return bool(second == 0x80 and (third == 0x80 or 0x90 <= third <= 0x91))
    if first != 0xEF or second != 0xBC:
        return False
    return bool(third == 0x88 or third == 0x89 or third == 0x9F or third == 0x81)


@compiled
def trim_line(text: NDArray[np.uint8], start: int, stop: int) -> tuple[int, int]:
    """Begin and end of a line without decoration around it; of a table's row (`| a | b`) nothing."""
    first = start
    while first < stop and text[first] <= 32:
        first += 1
    if first < stop and text[first] == _BAR:
        for at in range(first + 1, stop):
            if text[at] == _BAR:
                return start, start
    while start < stop:
        if text[start] < 0x80 and _DECORATION[text[start]]:
            start += 1
        elif text[start] >= 0xC2 and start + 2 < stop and _is_decoration(text, start):
            start += 2 if text[start] < 0xE0 else 3
        else:
            break
    while stop > start:
        if text[stop - 1] < 0x80 and _DECORATION[text[stop - 1]]:
            stop -= 1
        elif stop - start > 3 and text[stop - 3] >= 0xE0 and _is_decoration(text, stop - 3):
            stop -= 3
        elif stop - start > 2 and text[stop - 2] == 0xC2 and text[stop - 1] in (0xAB, 0xBB, 0xB7, 0xA0):
            stop -= 2
        else:
            break
    return start, stop


@compiled
def pack_short_lines(
    text: NDArray[np.uint8], lines: NDArray[np.int64], first: int, max_line: int, max_bytes: int
) -> Any:
    """Short lines from line `first` on, undecorated, each closed by a line end, until `max_bytes` are full.

    Returns:
        the bytes; the number of each line in them; where each ends in them (its line end); the line to go on with.
    """
    size = count = 0
    last = first
    while last < len(lines) and size < max_bytes:
        length = lines[last, 1] - lines[last, 0]
        if 1 < length <= max_line:
            size, count = size + length + 1, count + 1
        last += 1
    packed = np.empty(size, np.uint8)
    line_of, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    size = count = 0
    for line in range(first, last):
        if not 1 < lines[line, 1] - lines[line, 0] <= max_line:
            continue
        start, stop = trim_line(text, lines[line, 0], lines[line, 1])
        if start == stop:
            continue
        for at in range(stop - start):
            packed[size + at] = text[start + at]
        size += stop - start
        packed[size] = 10
        line_of[count], ends[count] = line, size
        size, count = size + 1, count + 1
    return packed[:size], line_of[:count], ends[:count], last


@compiled
def spare_lonely_words(
    text: NDArray[np.uint8], lines: NDArray[np.int64], document: NDArray[np.int32], reason: NDArray[np.uint8]
) -> None:
    """Take the reason away from lines of one word whose neighbours, empty lines apart, have none.

    In CJK a few characters are a word.
    """
    lonely = np.zeros(len(lines), np.bool_)
    before = -1
    waiting = -1  # a single word that nothing before supports
    for line in range(len(lines)):
        if before >= 0 and document[line] != document[before]:
            if waiting >= 0:
                lonely[waiting] = True
            before = waiting = -1
        if _is_blank(text, lines[line, 0], lines[line, 1]):
            continue
        if waiting >= 0 and reason[line] == 0:
            lonely[waiting] = True
        supported = before >= 0 and reason[before] > 0
        waiting = -1
        if reason[line] > 0 and not supported and _is_word(text, lines[line, 0], lines[line, 1]):
            waiting = line
        before = line
    if waiting >= 0:
        lonely[waiting] = True
    reason[lonely] = 0


@compiled
def _is_word(text: NDArray[np.uint8], start: int, stop: int) -> bool:
    start, stop = trim_line(text, start, stop)
    wide = 0
    for at in range(start, stop):
        if text[at] <= 32 or 48 <= text[at] <= 57:
            return False
        wide += text[at] >= 0xE3
    return wide <= MAX_WORD_CJK


@compiled
def spare_wrapped_lines(
    text: NDArray[np.uint8], lines: NDArray[np.int64], document: NDArray[np.int32], reason: NDArray[np.uint8]
) -> None:
    """Take the reason away from lines that go on with a sentence: text may be wrapped at 70 columns.

    Such a line begins with a small letter, right below one that stays and ends in no full stop or the like.
    """
    for line in range(1, len(lines)):
        if reason[line] == 0 or reason[line - 1] or document[line] != document[line - 1]:
            continue
        first, last = lines[line, 0], lines[line - 1, 1] - 1
        while first < lines[line, 1] - 1 and text[first] <= 32:
            first += 1
        while last > lines[line - 1, 0] and text[last] <= 32:
            last -= 1
        long = lines[line - 1, 1] - lines[line - 1, 0] > MAX_MENU_WIDTH
        if long and 97 <= text[first] <= 122 and not _ENDS[text[last]]:
            reason[line] = 0


@compiled
def is_menu_item(text: NDArray[np.uint8], start: int, stop: int) -> bool:
    """Whether a line may be a menu's item: short, few words, no sentence, no code, no cells of a table.

    It begins with a capital or with a letter of a script other than ASCII.
    """
    width = words = letters = digits = 0
    if not (65 <= text[start] <= 90 or text[start] >= 0xC3):
        return False
    while text[stop - 1] <= 32:
        stop -= 1
    if stop - start > 3 * MAX_MENU_WIDTH or _ENDS[text[stop - 1]]:
        return False
    before = np.uint8(46)
    for at in range(start, stop):
        byte = text[at]
        if _NO_ITEM[byte] or (byte <= 32 and before <= 32):
            return False
        width += (byte & 0xC0) != 0x80
        width += byte >= 0xE0
        words += int(byte > 32 and (before <= 32 or at == start))
        digits += 48 <= byte <= 57
        letters += byte >= 0x80 or 65 <= byte <= 90 or 97 <= byte <= 122
        if before == 0x80 and (byte == 0x81 or byte == 0x82) and text[at - 2] == 0xE3:  # 、 。
            return False
        if (
            before == 0xBC
            and (byte == 0x81 or byte == 0x8C or byte == 0x9A or byte == 0x9B or byte == 0x9F)
            and text[at - 2] == 0xEF
        ):
            return False  # ！ ， ： ； ？
        before = byte
    return width <= MAX_MENU_WIDTH and words <= MAX_MENU_WORDS and letters >= 3 and letters > digits


@compiled
def mark_menus(
    text: NDArray[np.uint8],
    lines: NDArray[np.int64],
    document: NDArray[np.int32],
    min_lines: int,
    menu: int,
    reason: NDArray[np.uint8],
) -> None:
    """Give lines in runs of at least `min_lines` menu items the reason `menu`; lines with a reason are items, too.

    An empty line ends a run: cells of tables come one by one with empty lines between, menus as lists do not.
    """
    first = 0
    for line in range(len(lines) + 1):
        ends = line == len(lines) or (line > 0 and document[line] != document[line - 1])
        item = False
        if line < len(lines) and not _is_blank(text, lines[line, 0], lines[line, 1]):
            item = reason[line] > 0 or is_menu_item(text, lines[line, 0], lines[line, 1])
        if ends or not item:
            if line - first >= min_lines:
                for each in range(first, line):
                    reason[each] = reason[each] or menu
            first = line
        if not item:
            first = line + 1


@compiled
def _is_blank(text: NDArray[np.uint8], start: int, stop: int) -> bool:
    at = start
    while at < stop and text[at] <= 32:
        at += 1
    return at == stop


@compiled
def remove_lines(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    lines: NDArray[np.int64],
    document: NDArray[np.int32],
    reason: NDArray[np.uint8],
) -> Any:
    """The texts without the lines that have a reason, and their offsets.

    A text of which nothing is removed stays as it is. In others, of the empty lines around a removed line one stays,
    none at the beginning and the end.
    """
    num_texts = len(offsets) - 1
    out = np.empty(offsets[num_texts] - offsets[0], np.uint8)
    bounds = np.zeros(num_texts + 1, np.int64)
    size = line = 0
    for index in range(num_texts):
        first = line
        touched = False
        while line < len(lines) and document[line] == index:
            touched |= reason[line] > 0
            line += 1
        if touched:
            size = _write_kept(text, lines, first, line, reason, out, size)
        else:
            length = offsets[index + 1] - offsets[index]
            out[size : size + length] = text[offsets[index] : offsets[index + 1]]
            size += length
        bounds[index + 1] = size
    return out[:size].copy(), bounds


@compiled
def _write_kept(
    text: NDArray[np.uint8],
    lines: NDArray[np.int64],
    first: int,
    last: int,
    reason: NDArray[np.uint8],
    out: NDArray[np.uint8],
    size: int,
) -> int:
    begin = size
    after_removal = True
    before_blank = True
    for line in range(first, last):
        if reason[line]:
            after_removal = True
            continue
        blank = _is_blank(text, lines[line, 0], lines[line, 1])
        if blank and after_removal and before_blank:
            continue
        length = lines[line, 1] - lines[line, 0]
        out[size : size + length] = text[lines[line, 0] : lines[line, 1]]
        out[size + length] = 10
        size += length + 1
        before_blank = blank
        after_removal = after_removal and blank
    while size > begin and out[size - 1] <= 32:
        size -= 1
    return size
