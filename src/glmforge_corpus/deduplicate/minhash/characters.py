"""What the loops over UTF-8 must know of characters, as one table that Python's own Unicode data fills."""

import functools
import unicodedata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import non_allocating
from glmforge_corpus.words.unspaced import TSHEG, UNSPACED

Unit = Literal["word", "mixed", "character"]

TABLE_SIZE = 0x20000
"""Beyond these planes are ideographs and tags only: no capitals, no spaces, no punctuation."""

SPACE = np.uint32(0xFFFFFFFF)
ALONE = np.uint32(1 << 31)
DOTTED_I = np.uint32(0x130)
"""The one letter that becomes two in lower case: i and a dot above."""


@functools.cache
def character_table(unit: Unit, strip_punctuation: bool) -> NDArray[np.uint32]:
    """`[TABLE_SIZE]`: the lower-case code point of each, `SPACE` for what separates words; `ALONE` is set in a letter
    that is a word of its own. Code points beyond the table are `ALONE` if U+4E00 is, and otherwise unchanged."""
    table = np.arange(TABLE_SIZE, dtype=np.uint32)
    for point in range(TABLE_SIZE):
        character = chr(point)
        lower = character.lower()
        if character.isspace() or (strip_punctuation and unicodedata.category(character)[0] in "PS"):
            table[point] = SPACE
        elif len(lower) == 1:
            table[point] = ord(lower)
    table[ord("ς")] = ord("σ")
    if unit == "mixed":
        table[list(TSHEG)] = SPACE
        for first, last in UNSPACED:
            part = table[first : last + 1]
            part[part != SPACE] |= ALONE
    return table


@non_allocating
def look_up(point: Any, table: Any) -> Any:
    """The table's entry of any code point."""
    if point < np.uint32(len(table)):
        return table[point]
    return point | (table[0x4E00] & ALONE)


@non_allocating
def mix(x: Any) -> Any:
    """A bijection of 64-bit integers after which every bit depends on every other."""
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))
