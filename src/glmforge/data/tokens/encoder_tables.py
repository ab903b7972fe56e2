"""A tokenizer as arrays, which the compiled encoder reads: which tokens a merge joins, which token has a spelling.

Both are open hash tables. A pair of tokens and the rank of its merge share one 64-bit entry, so that looking a pair up
touches one cache line; that is what bounds ids and ranks to 21 bits.
"""

# mypy: disable-error-code="no-untyped-def,assignment,call-arg"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import equal_bytes, hash_bytes
from glmforge.data.compiled import non_allocating

ID_BITS = 21
MAX_VOCABULARY = (1 << ID_BITS) - 2
"""Three ids and a mark fit into 64 bits; so do two ids and the rank of a merge."""

NO_RANK = np.int32(0x7FFFFFFF)
"""Rank of a pair that no merge joins; behind all others."""

_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(ID_BITS)
_RANK = np.uint64((1 << ID_BITS) - 1)


class EncoderTables(NamedTuple):
    """A tokenizer as arrays.

    Attributes:
        byte_ids: int32 `[256]`.
        byte_ranks: int32 `[65536]`, rank of the merge of two bytes, by first << 8 | second.
        character_ids: int32 `[65536]`, the token of a character that may be made of its bytes before anything else is
            looked at, -1 for others; see `first_characters`.
        pair_ranks: uint64 hash table of (left id, right id, rank), 21 bits each.
        merged_ids: int32 `[m]`, the token that each merge makes.
        spelling_table: int32 hash table of tokens by spelling; of length 1 if whole pieces are not looked up.
        spellings, spelling_offsets: bytes of all tokens end to end.
        classes: `characters.character_classes()`.
    """

    byte_ids: NDArray[np.int32]
    byte_ranks: NDArray[np.int32]
    character_ids: NDArray[np.int32]
    pair_ranks: NDArray[np.uint64]
    merged_ids: NDArray[np.int32]
    spelling_table: NDArray[np.int32]
    spellings: NDArray[np.uint8]
    spelling_offsets: NDArray[np.int64]
    classes: NDArray[np.uint8]


@non_allocating
def pair_rank(pair_ranks, left, right):
    """Rank of the merge that joins two tokens, `NO_RANK` if none does."""
    pair = np.uint64(left) << _SHIFT | np.uint64(right)
    mask = np.uint64(len(pair_ranks) - 1)
    slot = (pair * _FACTOR) >> np.uint64(40) & mask
    while True:
        entry = pair_ranks[slot]
        if entry >> _SHIFT == pair:
            return np.int32(entry & _RANK)
        if entry == _EMPTY:
            return NO_RANK
        slot = (slot + np.uint64(1)) & mask


@non_allocating
def fill_pair_ranks(pair_ranks, pairs):
    """Write pairs `[m, 2]`, rank by rank, into a table of a power of two more than m slots."""
    pair_ranks[:] = _EMPTY
    mask = np.uint64(len(pair_ranks) - 1)
    for rank in range(len(pairs)):
        pair = np.uint64(pairs[rank, 0]) << _SHIFT | np.uint64(pairs[rank, 1])
        slot = (pair * _FACTOR) >> np.uint64(40) & mask
        while pair_ranks[slot] != _EMPTY:
            slot = (slot + np.uint64(1)) & mask
        pair_ranks[slot] = pair << _SHIFT | np.uint64(rank)


@non_allocating
def find_spelling(text, start, stop, table, spellings, spelling_offsets):
    """The token spelt `text[start:stop]`, or -1."""
    mask = np.uint64(len(table) - 1)
    slot = hash_bytes(text, start, stop) & mask
    while table[slot] >= 0:
        token = table[slot]
        first, length = spelling_offsets[token], spelling_offsets[token + 1] - spelling_offsets[token]
        if length == stop - start and equal_bytes(text, start, spellings, first, length):
            return token
        slot = (slot + np.uint64(1)) & mask
    return -1


@non_allocating
def fill_spelling_table(table, spellings, spelling_offsets):
    """Write all tokens that have a spelling into a table of a power of two more slots than tokens."""
    table[:] = -1
    mask = np.uint64(len(table) - 1)
    for token in range(len(spelling_offsets) - 1):
        first, last = spelling_offsets[token], spelling_offsets[token + 1]
        if first == last:
            continue
        slot = hash_bytes(spellings, first, last) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = token
