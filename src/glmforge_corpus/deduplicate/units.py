"""Texts -> hashes of their words or characters, straight from UTF-8.

A word's hash is made of the bytes of its lower-cased form, eight at a time. Words that stand between ASCII spaces and
are ASCII themselves, nearly all in many languages, take the fast path: spaces are found eight bytes at a time with
the arithmetic of one machine word, and a word of up to eight bytes costs one load and two multiplications. Any other
word goes character by character, through a table made from Python's Unicode data, and comes to the same hash.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

import functools
import unicodedata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import TOP_BITS, character_at, load64, trailing_zeros
from glmforge.data.compiled import non_allocating
from glmforge.data.passages.normalised_words import UNSPACED
from glmforge_corpus.words.characters import TSHEG

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


_ONES = np.uint64(0x0101010101010101)
_SEED = np.uint64(0x2545F4914F6CDD1D)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = np.uint64(64)
_ONE, _EIGHT = np.uint64(1), np.uint64(8)


@non_allocating
def hash_units(text: Any, start: int, stop: int, table: Any, characters: bool, units: Any) -> int:
    """Write the hashes of the units of `text[start:stop]` to `units`; return how many there are."""
    if characters:
        return _hash_characters(text, np.uint64(start), np.uint64(stop), table, units)
    if table[ord("!")] == SPACE:  # more than spaces separates words
        return _hash_any_word(text, np.uint64(start), np.uint64(stop), table, units, 0)
    return _hash_words(text, np.uint64(start), np.uint64(stop), table, units)


@non_allocating
def _hash_words(text: Any, start: Any, stop: Any, table: Any, units: Any) -> int:
    count = 0
    word, after_space = start, _ONE
    for number in range((stop - start + _BLOCK - _ONE) // _BLOCK):
        block = start + np.uint64(number) * _BLOCK
        spaces = _spaces(text, block, stop)
        borders = spaces ^ (spaces << _ONE | after_space)  # where words begin and end, in turn
        while borders:
            place = block + trailing_zeros(borders)
            borders &= borders - _ONE
            if after_space:
                word = place
            else:
                hashed = _hash_ascii_word(text, word, place)
                if hashed:
                    units[count] = hashed
                    count += 1
                else:
                    count = _hash_any_word(text, word, place, table, units, count)
            after_space ^= _ONE
    if not after_space:
        count = _hash_any_word(text, word, stop, table, units, count)
    return count


@non_allocating
def _spaces(text: Any, start: Any, stop: Any) -> Any:
    """Bit i is set if byte `start + i` is an ASCII space; after `stop`, as the byte before it."""
    bits = np.uint64(0)
    if start + _BLOCK <= stop:
        for k in range(8):
            k8 = np.uint64(8 * k)
            flags = _space_flags(load64(text, start + k8)) >> np.uint64(7)
            bits |= ((flags * np.uint64(0x0102040810204080)) >> np.uint64(56)) << k8
        return bits
    space = False
    for k in range(64):
        i = start + np.uint64(k)
        if i < stop:
            byte = text[i]
            space = byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31
        bits |= np.uint64(space) << np.uint64(k)
    return bits


@non_allocating
def _space_flags(group: Any) -> Any:
    """The high bit of each of eight bytes that is one of 9-13, 28-32: adding sets it from the lower bound on."""
    low = group & ~TOP_BITS
    flags = (low + _ONES * np.uint64(128 - 9)) & ~(low + _ONES * np.uint64(128 - 14))
    flags |= (low + _ONES * np.uint64(128 - 28)) & ~(low + _ONES * np.uint64(128 - 33))
    return flags & ~group & TOP_BITS


@non_allocating
def _lower(group: Any) -> Any:
    """Eight ASCII bytes in lower case."""
    capital = (group + _ONES * np.uint64(128 - 65)) & ~(group + _ONES * np.uint64(128 - 91)) & TOP_BITS
    return group | capital >> np.uint64(2)


@non_allocating
def _hash_ascii_word(text: Any, start: Any, stop: Any) -> Any:
    """The hash of what stands between two ASCII spaces; 0 if that is not all ASCII, or too near the buffer's end."""
    state, seen, i = _SEED, np.uint64(0), start
    while i + _EIGHT < stop:
        group = load64(text, i)
        seen |= group
        state = _absorb(state, _lower(group))
        i += _EIGHT
    if i + _EIGHT > np.uint64(len(text)):
        return np.uint64(0)
    group = load64(text, i) & (~np.uint64(0) >> (np.uint64(64) - _EIGHT * (stop - i)))
    if (seen | group) & TOP_BITS:
        return np.uint64(0)
    return mix(_absorb(state, _lower(group)) ^ (stop - start))


@non_allocating
def _absorb(state: Any, group: Any) -> Any:
    state = (state ^ group) * _PRIME
    return state ^ state >> np.uint64(32)


@non_allocating
def _hash_any_word(text: Any, i: Any, stop: Any, table: Any, units: Any, count: int) -> int:
    """Hash all words of any text, character by character."""
    state, group, size = _SEED, np.uint64(0), np.uint64(0)
    while i < stop:
        code, length = character_at(text, np.int64(i), np.int64(stop))
        i += np.uint64(length)
        raw = np.uint32(code)
        point = look_up(raw, table)
        if point < 0x80:
            state, group, size = _push_byte(state, group, size, np.uint64(point))
            continue
        if (point == SPACE or point & ALONE) and size:
            units[count] = _finish(state, group, size)
            count += 1
            state, group, size = _SEED, np.uint64(0), np.uint64(0)
        if point == SPACE:
            continue
        if raw == DOTTED_I:
            state, group, size = _push(state, group, size, np.uint32(ord("i")))
            point = np.uint32(0x307)
        state, group, size = _push(state, group, size, point & ~ALONE)
        if point & ALONE:
            units[count] = _finish(state, group, size)
            count += 1
            state, group, size = _SEED, np.uint64(0), np.uint64(0)
    if size:
        units[count] = _finish(state, group, size)
        count += 1
    return count


@non_allocating
def _finish(state: Any, group: Any, size: Any) -> Any:
    """A full last group has been absorbed already."""
    if size & np.uint64(7):
        state = _absorb(state, group)
    return mix(state ^ size)


@non_allocating
def _push(state: Any, group: Any, size: Any, point: Any) -> Any:
    """Add a character's UTF-8 to a word."""
    point = np.uint64(point)
    if point < 0x80:
        return _push_byte(state, group, size, point)
    if point < 0x800:
        state, group, size = _push_byte(state, group, size, np.uint64(0xC0) | point >> np.uint64(6))
    else:
        if point < 0x10000:
            state, group, size = _push_byte(state, group, size, np.uint64(0xE0) | point >> np.uint64(12))
        else:
            state, group, size = _push_byte(state, group, size, np.uint64(0xF0) | point >> np.uint64(18))
            state, group, size = _push_byte(state, group, size, _six_bits(point, 12))
        state, group, size = _push_byte(state, group, size, _six_bits(point, 6))
    return _push_byte(state, group, size, _six_bits(point, 0))


@non_allocating
def _six_bits(point: Any, shift: int) -> Any:
    return np.uint64(0x80) | (point >> np.uint64(shift) & np.uint64(0x3F))


@non_allocating
def _push_byte(state: Any, group: Any, size: Any, byte: Any) -> Any:
    group |= byte << (_EIGHT * (size & np.uint64(7)))
    size += _ONE
    if size & np.uint64(7) == 0:
        return _absorb(state, group), np.uint64(0), size
    return state, group, size


@non_allocating
def _hash_characters(text: Any, i: Any, stop: Any, table: Any, units: Any) -> int:
    """Hash each character; a stretch of spaces is one, none at the ends."""
    count, after_space = 0, False
    while i < stop:
        code, length = character_at(text, np.int64(i), np.int64(stop))
        i += np.uint64(length)
        raw = np.uint32(code)
        point = look_up(raw, table)
        if point == SPACE:
            after_space = True
            continue
        if after_space and count:
            units[count] = _character(np.uint32(32))
            count += 1
        after_space = False
        if raw == DOTTED_I:
            units[count] = _character(np.uint32(ord("i")))
            count += 1
            point = np.uint32(0x307)
        units[count] = _character(point)
        count += 1
    return count


@non_allocating
def _character(point: Any) -> Any:
    """Never 0, which would be lost at the front of a shingle."""
    return mix(np.uint64(point & ~ALONE) + _ONE)
