"""Compiled helpers over UTF-8 that other loops call: eight bytes at once, a hash, a character.

The one home of these for all code that reads text as bytes. Bytes are loaded little-endian.

The hash is our own: eight bytes per multiplication, seeded, the same on every little-endian machine and in every
run. It is good enough for tables of a document's words and lines, and is not for adversaries.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from glmforge.data.compiled import compiled, non_allocating

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINISHER = np.uint64(0xD6E8FEB86659FD93)
_SEED = np.uint64(0x8A5CD789635D2DFF)
_HALF = np.uint64(32)
_EIGHT = np.uint64(8)
_SIXTY_FOUR = np.uint64(64)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONES = np.uint64(0x0101010101010101)
TOP_BITS = np.uint64(0x8080808080808080)
"""The top bit of each of eight bytes."""


def _load64(_: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(address, align=1)

    return types.uint64(array, types.intp), generate


load64: Any = intrinsic(_load64)
"""`load64(array, i)`: bytes i to i + 8 of a uint8 array as a little-endian uint64; no bounds check."""


def _store64(_: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(arguments[2], address, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


store64: Any = intrinsic(_store64)
"""`store64(array, i, value)`: the reverse of `load64`; no bounds check."""


def _trailing_zeros(_: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


trailing_zeros: Any = intrinsic(_trailing_zeros)
"""Zero bits below the lowest one bit of a uint64, or 64."""


@compiled(inline="always")
def mixed(value: np.uint64) -> np.uint64:
    """`value` with its bits stirred."""
    value = (value ^ (value >> _HALF)) * _FINISHER
    return value ^ (value >> _HALF)


@non_allocating
def hash_bytes(text: Any, start: int, stop: int) -> np.uint64:
    """Hash of `text[start:stop]` (uint8). Equal bytes have equal hashes, of any array they are part."""
    value = _SEED + np.uint64(stop - start) * _MULTIPLIER
    position = start
    while position + 8 < stop:
        value = mixed((value ^ load64(text, position)) * _MULTIPLIER)
        position += 8
    return mixed((value ^ _load_up_to_8(text, position, stop)) * _MULTIPLIER)


@compiled(inline="always")
def hash_short(text: Any, start: int, stop: int) -> np.uint64:
    """`hash_bytes`, written out where it is called for the many stretches of one to eight bytes."""
    if 0 < stop - start <= 8 and start + 8 <= len(text):
        last = load64(text, start) & (_ALL >> (_SIXTY_FOUR - _EIGHT * np.uint64(stop - start)))
        return mixed(((_SEED + np.uint64(stop - start) * _MULTIPLIER) ^ last) * _MULTIPLIER)
    return hash_bytes(text, start, stop)


@non_allocating
def _load_up_to_8(text: Any, start: int, stop: int) -> Any:
    value = np.uint64(0)
    if start < stop and start + 8 <= len(text):
        return load64(text, start) & (_ALL >> (_SIXTY_FOUR - _EIGHT * np.uint64(stop - start)))
    for position in range(start, stop):
        value |= np.uint64(text[position]) << (_EIGHT * np.uint64(position - start))
    return value


@non_allocating
def character_at(text: Any, position: int, stop: int) -> Any:
    """(code point, bytes) of the character at `position`; a byte that begins no whole character stands for itself."""
    first = np.int64(text[np.uintp(position)])
    if first < 0x80:
        return first, 1
    if 0xC0 <= first < 0xE0 and position + 2 <= stop:
        return (first & 0x1F) << 6 | _low_bits(text, position + 1), 2
    if 0xE0 <= first < 0xF0 and position + 3 <= stop:
        return (first & 0x0F) << 12 | _low_bits(text, position + 1) << 6 | _low_bits(text, position + 2), 3
    if 0xF0 <= first < 0xF5 and position + 4 <= stop:
        code = (first & 0x07) << 18 | _low_bits(text, position + 1) << 12
        code |= _low_bits(text, position + 2) << 6 | _low_bits(text, position + 3)
        return min(code, np.int64(0x10FFFF)), 4
    return first, 1


@compiled(inline="always")
def _low_bits(text: Any, position: int) -> Any:
    """The bits of its code point that a byte within a character holds."""
    return np.int64(text[np.uintp(position)]) & 0x3F


@non_allocating
def equal_bytes(a: Any, a_start: int, b: Any, b_start: int, size: int) -> bool:
    """Whether two stretches of `size` bytes are equal."""
    position = 0
    while position + 8 <= size:
        if load64(a, a_start + position) != load64(b, b_start + position):
            return False
        position += 8
    while position < size:
        if a[a_start + position] != b[b_start + position]:
            return False
        position += 1
    return True


@compiled(inline="always")
def between(eight: np.uint64, low: int, high: int) -> np.uint64:
    """The top bit of each of eight ASCII bytes (all below 128) that lies in [low, high]."""
    above_low = eight + np.uint64(128 - low) * _ONES
    above_high = eight + np.uint64(127 - high) * _ONES
    return above_low & ~above_high & TOP_BITS


@compiled(inline="always")
def equal_to(eight: np.uint64, byte: int) -> np.uint64:
    """Not 0 if one of eight bytes is `byte`."""
    others = eight ^ np.uint64(byte) * _ONES
    return (others - _ONES) & ~others & TOP_BITS


@non_allocating
def copy_bytes(source: Any, start: int, stop: int, out: Any, position: int) -> int:
    """Copy `source[start:stop]` to `position` in `out`, which may be the same array before `start`; the end there."""
    size = stop - start
    place = 0
    while place + 8 <= size:
        store64(out, position + place, load64(source, start + place))
        place += 8
    while place < size:
        out[np.uintp(position + place)] = source[np.uintp(start + place)]
        place += 1
    return position + size
