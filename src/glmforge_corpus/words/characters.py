"""Classes of characters: one byte for each of Unicode's code points, for loops over UTF-8.

The table is made from Python's `unicodedata` (in a few hundredths of a second). It says how a character takes part in
words (`split.py` has the rule) and carries three marks that the published filter rules ask for.

Two sets are not in `unicodedata` and stand here as code points: the characters that end a sentence (Unicode's property
Sentence_Terminal, to which the full-width full stop is added), and the punctuation that the filters of CCNet and
datatrove do not count as part of a word, a set chosen manually there.
"""

import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

TSHEG = (0x0F0B, 0x0F0C)
"""Tibetan's marks between syllables."""


SPACE, BREAK, LETTER, DIGIT, CONNECTOR, EXTENDER, JOINER, COMMA, SYMBOL, HAN, HIRAGANA, KATAKANA, ABUGIDA, LEADING = (
    range(14)
)
"""Classes. BREAK is white space at which `str.splitlines` cuts; SPACE is other white space and Tibetan's tsheg."""

CLASS = 0x0F
ALPHABETIC = 0x10
"""The character is a letter: `str.isalpha`."""
TERMINAL = 0x20
"""The character ends sentences."""
PUNCTUATION = 0x40
"""The character does not make a word a word."""

# Sentence_Terminal, as first and last code points.
_SENTENCE_TERMINAL = """
21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6
17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049
2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB
FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143
111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642
1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38
16B44 16E98 1BC9F 1DA88
"""
_OTHER_PUNCTUATION = "«´»–—’“”„…∶━►、〈〉《》「」【】％（），：；～"
_CONTROLS = "0-8 B-1F 7F-9F"

_SCRIPTS = {
    HAN: "3005 3007 3021-3029 3038-303B 3400-4DBF 4E00-9FFF F900-FAFF 20000-3FFFF",
    HIRAGANA: "3041-3096 309D-309F 1B001-1B11F",
    KATAKANA: "30A1-30FA 30FC-30FF 31F0-31FF FF66-FF9D",
    ABUGIDA: "E01-E30 E32-E33 E45-E46 E81-EB0 EB2-EB3 EBD EC6 EDC-EDF 1000-102A 103F-1049 1050-109F 1780-17B3 17D7 "
    "17DC 1950-19DF 1A20-1A54 A9E0-A9FE AA60-AA7F AA80-AADD",
    LEADING: "E40-E44 EC0-EC4",
}
_JOINERS = "'.’·"
_TSHEG = "\u0f0b\u0f0c"
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def _code_points(ranges: str) -> Iterator[int]:
    for part in ranges.split():
        first, _, last = part.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


SENTENCE_TERMINALS = frozenset(map(chr, _code_points(_SENTENCE_TERMINAL)))
PUNCTUATION_CHARACTERS = (
    SENTENCE_TERMINALS
    | set(_OTHER_PUNCTUATION)
    | set(map(chr, _code_points(_CONTROLS)))
    | {chr(code) for code in range(33, 127) if not chr(code).isalnum()}
)


@cache
def character_table() -> NDArray[np.uint8]:
    """`[0x110000]`: class and marks of each code point; read-only."""
    table = np.fromiter(map(_entry, map(chr, range(sys.maxunicode + 1))), np.uint8, sys.maxunicode + 1)
    for kind, ranges in _SCRIPTS.items():
        codes = np.fromiter(_code_points(ranges), np.int64)
        entries = table[codes]
        is_word = np.isin(entries & CLASS, (LETTER, DIGIT)) & ((entries & ALPHABETIC > 0) | (kind == HAN))
        table[codes[is_word]] = entries[is_word] & ~np.uint8(CLASS) | kind
    _set_class(table, _JOINERS, JOINER)
    _set_class(table, ",", COMMA)
    _set_class(table, _TSHEG, SPACE)
    table[[ord(c) for c in SENTENCE_TERMINALS]] |= TERMINAL
    table[[ord(c) for c in PUNCTUATION_CHARACTERS]] |= PUNCTUATION
    table.flags.writeable = False
    return table


def _set_class(table: NDArray[np.uint8], characters: Iterable[str], kind: int) -> None:
    codes = [ord(c) for c in characters]
    table[codes] = table[codes] & ~np.uint8(CLASS) | kind


def _entry(character: str) -> int:
    if character.isspace():
        return BREAK if character in _BREAKS else SPACE
    category = unicodedata.category(character)
    if category[0] == "L":
        return LETTER | ALPHABETIC
    if category[0] == "N":
        return DIGIT
    if category[0] == "M" or category == "Cf":
        return EXTENDER
    return CONNECTOR if category == "Pc" else SYMBOL
