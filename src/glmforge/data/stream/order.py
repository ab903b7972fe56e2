"""A shuffled order without a shuffled list.

`permute(i, n, key)` is a bijection of {0 ... n-1} that looks random and that any process can evaluate at any
point: no permutation of 10^9 windows is stored, exchanged or replayed to find one's place again. It is a
Feistel network (a bijection of all numbers of b bits, regardless of its round function) with cycle walking (apply
it again until the result is below n, which takes at most four rounds on average as 2^b < 4n): Black and
Rogaway, "Ciphers with arbitrary finite domains", 2002. The round function is a 64-bit mixer rather than a
cipher, as the order of training data needs no secrecy.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]

_NUM_ROUNDS = 8
_MIN_HALF_BITS = 4
"""Halves of fewer bits give a Feistel network too few different permutations to look random."""


def stream_key(*parts: int | str) -> int:
    """64 bits that depend on all `parts` and on their order, the same on every machine."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permute(index: ArrayLike, size: ArrayLike, key: ArrayLike) -> NDArray[np.int64]:
    """Where the permutation of {0 ... size-1} that `key` selects sends `index`.

    Args:
        index: integers in [0, size).
        size: number of elements, up to 2^62.
        key: 64-bit integers. The three broadcast against each other: one call serves many permutations.

    Returns:
        int64, of the broadcast shape.
    """
    value, limit, keys = np.broadcast_arrays(*(np.asarray(a, dtype=np.uint64) for a in (index, size, key)))
    assert bool(np.all(value < limit)), "index must be less than size"
    half_bits = _half_bits(limit)
    with np.errstate(over="ignore"):  # 64-bit arithmetic is meant to wrap; numpy warns of it for scalars
        value = _feistel(value, half_bits, keys)
        while np.any(outside := value >= limit):
            value = np.where(outside, _feistel(value, half_bits, keys), value)
    return value.astype(np.int64)


def _half_bits(limit: Words) -> Words:
    """Half the number of bits that hold limit - 1, rounded up."""
    exponent = np.frexp((limit - np.uint64(1)).astype(np.float64))[1]  # rounding up to 2^k costs one bit, no error
    half_bits: Words = np.maximum((exponent + 1) // 2, _MIN_HALF_BITS).astype(np.uint64)
    return half_bits


def _feistel(value: Words, half_bits: Words, keys: Words) -> Words:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = value >> half_bits, value & mask
    for number in range(_NUM_ROUNDS):
        round_key = _mix(keys + np.uint64(number))
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << half_bits) | right


def _mix(word: Words) -> Words:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): an input bit flips half the output bits."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
