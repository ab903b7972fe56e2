"""Learn the merges of a byte-pair encoding from counted words.

Start with every byte a token; join the most frequent pair of neighbours to a new token, wherever it stands; repeat
(Sennrich et al. 2016). Ties go to the pair with the smaller ids. The same merges come out as from the trainer of
`tokenizers`, in about a tenth of the time.

All words lie in one array of symbols, linked to their neighbours. Two facts make it fast:

* A pair's places all come into being when its younger token is made, and only vanish after that. So they are one
  slice of a growing pool, written once; what has vanished is noticed when the slice is read. A pair that is born too
  rare to be merged is never written down at all, which is what most pairs are.
* Counts of a pair only fall, so a heap of outdated counts will do: what comes up with an old count goes back with
  the new one.

Both need that no spelling is made twice by different merges. It is not: bytes that become one token are not joined to
anything outside before, so what happens within them depends on them alone. (A run of one symbol that crosses their
border is joined from its start and would swallow the border, or leave it where it lies.)
"""

# mypy: disable-error-code="no-untyped-def"
# Compiled functions have no annotations: numba infers types, and numpy's describe scalars otherwise than it.

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled, non_allocating
from glmforge.data.tokens.pair_joins import (
    NEXT,
    PREVIOUS,
    SCRATCH_ROWS,
    SYMBOL,
    TOUCHED_ROWS,
    WORD,
    add_new_pairs,
    join,
    subtract_losses,
)
from glmforge.data.tokens.pair_queue import (
    COUNT,
    HEAP,
    KEY,
    MERGES,
    NONE,
    NUMBER,
    PAIRS,
    POOL,
    START,
    add_pair,
    find_pair,
    move_pairs,
    pair_key,
    pop,
    sift_down,
)
from glmforge.data.tokens.word_counts import Words
from glmforge.errors import DataError

MAX_BYTES = (1 << 31) - 1
"""Of all distinct words: places are numbers of 32 bits."""

_DONE, _NEED_POOL, _NEED_PAIRS = range(3)


@dataclass(frozen=True)
class Merges:
    """What was learnt.

    Attributes:
        pairs: int32 `[m, 2]`, the tokens that each merge joins, in order.
        tokens: spelling of every token in bytes, by id; the first 256 are the bytes in the order that was given.
    """

    pairs: NDArray[np.int32]
    tokens: list[bytes]


def learn_merges(words: Words, num_tokens: int, byte_ids: NDArray[np.int32], min_frequency: int = 2) -> Merges:
    """Merges until there are `num_tokens` tokens, or no pair is left that occurs `min_frequency` times.

    Args:
        words: the corpus, counted.
        num_tokens: of the vocabulary, the 256 bytes included.
        byte_ids: `[256]`, the id of each byte; ties between pairs are decided by ids.
        min_frequency: a rarer pair is not merged.

    Raises:
        DataError: the words have 2 GiB or more.
    """
    assert num_tokens >= 256, "must be checked by the caller"
    if words.offsets[-1] > MAX_BYTES:
        raise DataError(
            f"{int(words.offsets[-1]):,} bytes of distinct words, at most {MAX_BYTES:,} can be learnt from: "
            f"leave out texts without spaces, of which one has {int(np.diff(words.offsets).max()):,} bytes"
        )
    learner = _Learner(words, num_tokens, byte_ids, min_frequency)
    while (need := learner.advance()) != _DONE:
        learner.make_room(need)
    return learner.result()


class _Learner:
    """The arrays that the compiled loop works on. It stops when one is too small, and goes on when it is larger."""

    def __init__(self, words: Words, num_tokens: int, byte_ids: NDArray[np.int32], min_frequency: int) -> None:
        self._counts, self._min_frequency = words.counts, min_frequency
        byte_ids = np.ascontiguousarray(byte_ids, np.int32)
        self._rows = _symbols(words.data, words.offsets, byte_ids)
        self._byte_ids = byte_ids
        self._sizes = np.zeros(4, np.int64)
        self._pool = np.empty(2 * len(self._rows) + 1024, np.int32)
        self._table = np.full((1 << 18, 4), NONE, np.int64)
        self._heap = np.empty((1 << 17, 2), np.int64)
        self._scratch = np.zeros((SCRATCH_ROWS, num_tokens), np.int64)
        self._touched = np.zeros((TOUCHED_ROWS, num_tokens + 1), np.int32)
        self._merged = np.empty(len(self._pool) // 2, np.int32)
        self._pairs = np.empty((num_tokens - 256, 2), np.int32)
        self._begin()

    def _begin(self) -> None:
        weights, numbers = _count_first_pairs(self._rows, self._counts)
        while len(self._table) < 4 * int(np.count_nonzero(weights)):
            self.make_room(_NEED_PAIRS)
        _add_first_pairs(
            self._rows, weights, numbers, self._sizes, self._pool, self._table, self._heap, self._min_frequency
        )

    def advance(self) -> int:
        """Merge until done, or until something is too small: says what."""
        return int(
            _merge_all(
                self._rows, self._counts, self._sizes, self._pool, self._table, self._heap, self._scratch,
                self._touched, self._merged, self._pairs, self._min_frequency,
            )
        )  # fmt: skip

    def make_room(self, need: int) -> None:
        if need == _NEED_POOL:
            self._pool = np.concatenate([self._pool, np.empty_like(self._pool)])
            self._merged = np.empty(len(self._pool) // 2, np.int32)
        else:
            larger = np.full((2 * len(self._table), 4), NONE, np.int64)
            self._sizes[PAIRS] = move_pairs(self._table, larger, self._min_frequency)
            self._table = larger
            self._heap = np.concatenate([self._heap, np.empty_like(self._heap)])

    def result(self) -> Merges:
        tokens = [bytes([byte]) for byte in np.argsort(self._byte_ids).tolist()]
        pairs = self._pairs[: self._sizes[MERGES]].copy()
        for left, right in pairs.tolist():
            tokens.append(tokens[left] + tokens[right])
        assert len(set(tokens)) == len(tokens), "no spelling is made twice"
        return Merges(pairs, tokens)


@compiled
def _symbols(data, offsets, byte_ids):
    """int32 `[n, 4]`: symbol, next, previous, word; one row per byte of the words."""
    rows = np.empty((offsets[-1], 4), np.int32)
    for word in range(len(offsets) - 1):
        first, stop = offsets[word], offsets[word + 1]
        for place in range(first, stop):
            rows[place, SYMBOL] = byte_ids[data[place]]
            rows[place, NEXT] = place + 1 if place + 1 < stop else NONE
            rows[place, PREVIOUS] = place - 1 if place > first else NONE
            rows[place, WORD] = word
    return rows


@compiled
def _count_first_pairs(rows, counts):
    weights, numbers = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    for place in range(len(rows)):
        if rows[place, NEXT] != NONE:
            pair = rows[place, SYMBOL] << 8 | rows[place + 1, SYMBOL]
            weights[pair] += counts[rows[place, WORD]]
            numbers[pair] += 1
    return weights, numbers


@compiled
def _add_first_pairs(rows, weights, numbers, sizes, pool, table, heap, min_frequency):
    cursors = np.full(1 << 16, NONE, np.int64)
    for pair in range(1 << 16):
        if weights[pair] >= min_frequency:
            key = pair_key(pair >> 8, pair & 255)
            cursors[pair] = add_pair(key, weights[pair], numbers[pair], sizes, table, heap, min_frequency)
    for place in range(len(rows)):
        if rows[place, NEXT] != NONE:
            pair = rows[place, SYMBOL] << 8 | rows[place + 1, SYMBOL]
            if cursors[pair] != NONE:
                pool[cursors[pair]] = place
                cursors[pair] += 1


@non_allocating
def _merge_all(rows, counts, sizes, pool, table, heap, scratch, touched, merged, pairs, min_frequency):
    """Merge until done or until an array is too small; nothing is under way then."""
    while sizes[MERGES] < len(pairs) and sizes[HEAP] > 0:
        count, key = heap[0, 0], heap[0, 1]
        slot = find_pair(table, key)
        current = table[slot, COUNT] if table[slot, KEY] == key else 0
        if current < min_frequency:
            pop(heap, sizes)
            continue
        if current != count:
            heap[0, 0] = current
            sift_down(heap, 0, sizes[HEAP])
            continue
        start, number = table[slot, START], table[slot, NUMBER]
        token = 256 + sizes[MERGES]
        need = _room_needed(number, token, sizes, pool, table, heap)
        if need != _DONE:
            return need
        pop(heap, sizes)
        table[slot, COUNT] = 0
        left, right = np.int32(key >> 32), np.int32(key & 0xFFFFFFFF)
        pairs[sizes[MERGES], 0], pairs[sizes[MERGES], 1] = left, right
        sizes[MERGES] += 1
        size = join(left, right, pool[start : start + number], rows, counts, scratch, touched, merged)
        add_new_pairs(token, merged[:size], rows, counts, sizes, pool, table, heap, scratch, touched, min_frequency)
        subtract_losses(left, right, table, scratch, touched)
    return _DONE


@non_allocating
def _room_needed(number, num_tokens, sizes, pool, table, heap):
    """Which array the next merge, of a pair with so many places, might overrun."""
    new = min(2 * number, 2 * num_tokens + 2)
    if 2 * (sizes[PAIRS] + new) > len(table) or sizes[HEAP] + new > len(heap):
        return _NEED_PAIRS
    return _NEED_POOL if sizes[POOL] + 2 * number > len(pool) else _DONE
