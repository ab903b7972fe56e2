"""Places in UTF-8 where personal data may stand, found in one compiled pass; the rules then look at these only.

Three signs give it away: an "@" with a name before it and a dotted name behind it; a run of enough digits, perhaps
grouped; a colon inside of what may be an IPv6 or a hardware address. Dates, decimal fractions and digits that follow
a small letter (hexadecimal numbers, names; but for the beginning of an IBAN in small letters), the bulk of digits in
ordinary text, are let go here, and hints about a run and its neighbours spare it most of the rules.
"""

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.filter.pii.checksums import IBAN_LENGTHS

EMAIL, NUMBER, ADDRESS = range(3)
"""Kinds of candidates."""

_NOTHING, _DIGIT, _AT, _COLON = range(4)
_LOCAL, _DOMAIN, _HEX, _SEPARATOR, _UPPER, _WORD = (1 << place for place in range(6))


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    signs = np.zeros(256, np.uint8)
    signs[[*b"0123456789"]] = _DIGIT
    signs[ord("@")], signs[ord(":")] = _AT, _COLON
    members = np.zeros(256, np.uint8)
    upper, alphanumeric = [*range(65, 91)], [*range(48, 58), *range(65, 91), *range(97, 123)]
    members[alphanumeric] |= _LOCAL | _DOMAIN | _WORD
    members[[*b"._%+'-"]] |= _LOCAL
    members[[*b".-"]] |= _DOMAIN
    members[[*b"0123456789abcdefABCDEF"]] |= _HEX
    members[[*b" .-/()"]] |= _SEPARATOR
    members[upper] |= _UPPER
    members[ord("_")] |= _WORD
    return signs, members


SIGNS, MEMBERS = _tables()

BEHIND_PLUS, BEHIND_CAPITAL, BEFORE_CAPITAL, GROUPED, LONG, DOTTED, BEHIND_NAME = (1 << place for place in range(7))
"""Hints about a run of digits: a "+" right before it, a capital among the eight bytes before it, one right behind it,
a separator other than the blank in it, a group of nine digits or more, at least three dots, and
that the word before it may be one for telephones, by its last letter (tel, phone, fax, telefon, handy ...)."""

NAME_ENDS = np.isin(np.arange(256), [*b"lexnoypsr"])

MAX_GAP = 12
"""Bytes between such a word and its number."""

MAX_GROUP = 32
"""Digits in a row beyond which nothing is personal data; the longest IBAN has 31."""

IBAN_COUNTRIES = np.zeros((26, 26), np.bool_)
"""By the two letters."""
for _country in IBAN_LENGTHS:
    IBAN_COUNTRIES[ord(_country[0]) - 65, ord(_country[1]) - 65] = True

MAX_LOCAL, MAX_DOMAIN = 64, 253
"""Bytes of an address's parts, RFC 5321."""


@compiled
def find_candidates(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[k, 6]`: row, start and stop (in `text`), kind, number of digits, hints; in order of place."""
    out = np.empty((256, 6), np.int64)
    n = 0
    for row in range(len(offsets) - 1):
        i, stop = offsets[row], offsets[row + 1]
        begin = i
        while i < stop:
            while i < stop and SIGNS[text[i]] == _NOTHING:
                i += 1
            if i == stop:
                break
            sign = SIGNS[text[i]]
            digits, hints, first, last, kind = 0, 0, i, i + 1, ADDRESS
            if sign == _DIGIT:
                kind = NUMBER
                if i > begin and MEMBERS[text[i - 1]] & (_WORD | _UPPER) == _WORD:
                    if _begins_small_iban(text, begin, i, stop):
                        if n == len(out):
                            out = np.concatenate((out, np.empty_like(out)))
                        out[n] = row, i, i + 2, NUMBER, MAX_GROUP, BEHIND_CAPITAL
                        n += 1
                    while i < stop and SIGNS[text[i]] == _DIGIT:
                        i += 1
                    continue
                digits, last, hints, wanted = _digit_run(text, begin, i, stop)
            elif sign == _AT:
                first, last, wanted = _around_at(text, begin, i, stop)
                kind = EMAIL
            else:
                wanted = _may_be_address(text, begin, i, stop)
            if wanted:
                if n == len(out):
                    out = np.concatenate((out, np.empty_like(out)))
                out[n] = row, first, last, kind, digits, hints
                n += 1
            i = last if kind != EMAIL else i + 1
    return out[:n]


@compiled
def _begins_small_iban(text: NDArray[np.uint8], begin: int, i: int, stop: int) -> bool:
    """Whether a country and two digits begin a word and a letter or digit follows; its second letter is small."""
    if i - 2 < begin or i + 4 >= stop or not (97 <= text[i - 1] <= 122 and 97 <= text[i - 2] | 0x20 <= 122):
        return False
    if i - 3 >= begin and MEMBERS[text[i - 3]] & _WORD:
        return False
    if SIGNS[text[i + 1]] != _DIGIT or not IBAN_COUNTRIES[(text[i - 2] | 0x20) - 97, text[i - 1] - 97]:
        return False
    behind = i + 3 if text[i + 2] == 32 or text[i + 2] == 45 else i + 2
    return bool(MEMBERS[text[behind]] & _WORD > 0)


@compiled
def _digit_run(text: NDArray[np.uint8], begin: int, start: int, stop: int) -> tuple[int, int, int, bool]:
    """(digits, end, hints, wanted) of digits with at most two separators between them, beginning at `start`."""
    digits, group, longest, dots, separators, grouped, i, end = 0, 0, 0, 0, 0, False, start, start
    new_dots = new_grouped = 0
    while i < stop:
        byte = text[i]
        if SIGNS[byte] == _DIGIT:
            separators += i - end
            dots += new_dots
            grouped = grouped or new_grouped > 0
            new_dots = new_grouped = 0
            digits += 1
            group += 1
            longest = max(longest, group)
            i += 1
            end = i
            if group > MAX_GROUP:
                while i < stop and SIGNS[text[i]] == _DIGIT:
                    i += 1
                return digits, i, 0, False
            continue
        if i - end >= 2 or MEMBERS[byte] & _SEPARATOR == 0:
            break
        new_dots += byte == ord(".")
        new_grouped += byte != ord(" ")
        group = 0
        i += 1
    behind_plus = start > begin and text[start - 1] == ord("+")
    fraction = separators == 1 and dots == 1 and not behind_plus
    if dots < 3 or digits < 4:
        if digits < 7 and not (digits >= 2 and _is_behind_letters(text, begin, start, digits)):
            return digits, end, 0, False
        if digits >= 7 and (fraction or _is_date(text, start, end, digits)):
            return digits, end, 0, False
    hints = (DOTTED if dots >= 3 else 0) | (LONG if longest >= 9 else 0) | (BEHIND_PLUS if behind_plus else 0)
    if grouped or (start > begin and text[start - 1] == ord("(")):
        hints |= GROUPED
    for k in range(max(begin, start - 8), start):
        if MEMBERS[text[k]] & _UPPER:
            hints |= BEHIND_CAPITAL
    behind = end + 1 if end < stop and text[end] == ord("-") else end
    if behind < stop and MEMBERS[text[behind]] & _UPPER:
        hints |= BEFORE_CAPITAL
    if _is_behind_name(text, begin, start):
        hints |= BEHIND_NAME
    return digits, end, hints, True


@compiled
def _is_behind_name(text: NDArray[np.uint8], begin: int, start: int) -> bool:
    for k in range(start - 1, max(begin, start - MAX_GAP - 1) - 1, -1):
        byte = text[k]
        if byte >= 0x80:
            return True
        if byte == 10 or SIGNS[byte] == _DIGIT:
            return False
        if MEMBERS[byte] & _DOMAIN and byte > ord("9"):
            return bool(NAME_ENDS[byte | 0x20])
    return False


@compiled
def _is_behind_letters(text: NDArray[np.uint8], begin: int, start: int, digits: int) -> bool:
    """Whether two capitals stand before six digits, or six capitals before two."""
    before = start - 1
    if digits == 6 and before > begin and text[before] == ord(" "):
        before -= 1
    needed = 2 if digits == 6 else 6
    if before - needed + 1 < begin:
        return False
    for k in range(needed):
        if MEMBERS[text[before - k]] & _UPPER == 0:
            return False
    return digits == 6 or digits == 2


@compiled
def _is_date(text: NDArray[np.uint8], start: int, end: int, digits: int) -> bool:
    """2026-11-21 or 21.11.2026, perhaps with an hour."""
    if digits > 10 or end - start < 10:
        return False
    for first, second in ((4, 7), (2, 5)):
        separator = text[start + first]
        if SIGNS[separator] != _DIGIT and separator == text[start + second] and separator != ord(" "):
            inside = 0
            for k in range(10):
                inside += SIGNS[text[start + k]] == _DIGIT
            if inside == 8 and (end - start == 10 or text[start + 10] == ord(" ")):
                return True
    return False


@compiled
def _around_at(text: NDArray[np.uint8], begin: int, at: int, stop: int) -> tuple[int, int, bool]:
    """(start, end, wanted) of what may be an address around an "@"."""
    start = at
    while start > begin and at - start <= MAX_LOCAL and MEMBERS[text[start - 1]] & _LOCAL:
        start -= 1
    end, dots = at + 1, 0
    while end < stop and end - at <= MAX_DOMAIN and MEMBERS[text[end]] & _DOMAIN:
        dots += text[end] == ord(".")
        end += 1
    return start, end, at - start > 0 and at - start <= MAX_LOCAL and dots > 0


@compiled
def _may_be_address(text: NDArray[np.uint8], begin: int, colon: int, stop: int) -> bool:
    """Whether the first colon of a global IPv6 address or of six hexadecimal pairs stands here."""
    if colon - begin < 2 or MEMBERS[text[colon - 1]] & _HEX == 0 or MEMBERS[text[colon - 2]] & _HEX == 0:
        return False
    if colon + 14 < stop:
        pairs = True
        for k in range(3, 13, 3):
            pairs = pairs and text[colon + k] == ord(":")
        if pairs:
            return True
    if colon - begin < 4 or MEMBERS[text[colon - 3]] & _HEX == 0:
        return False
    lead = text[colon - 4]
    return (lead == ord("2") or lead == ord("3")) and colon + 1 < stop
