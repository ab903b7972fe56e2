"""Passages that are looked for in much text, by the n-grams of words they share with it.

Seed and extend, as in sequence search: an index of the passages' n-grams (n = 6 words, say) finds the places where
text and passage agree in n words; neighbouring places add up to the longest common run of words and to the share of
the passage's words that a stretch of text covers. One index thus serves the exact rule (a run of 13 words) and the
fuzzy one (a share).

Speed comes from one pass over the bytes that makes nothing: words are hashed as they are read, a running sum over the
last n of them is looked up in a bitmap that fits a core's cache (16 bits per n-gram), and only what that lets through
goes to the table.

N-grams that prove nothing are not indexed: those in many items, those of texts that the caller names, and those that
say little (`MIN_LETTERS_PER_WORD`, fewer than half their words different: number rows, rulers, tables). A passage's
words are counted as far as an indexed n-gram holds them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.data.passages.normalised_words import (
    fold_table,
    ngram_key,
    oldest_power,
    roll,
    split_words,
)
from glmforge.data.passages.passage_search import FOUND_COLUMNS, NEVER, judge

RUN_WORDS = 13
"""Consecutive words in common that prove contamination; a shorter passage must be there whole."""

MIN_WORDS = 8
"""Passages with fewer are not searched for: many texts contain them by chance."""

SEED_WORDS, COMMON_ITEMS = 6, 10
"""Words of an n-gram of the index; n-grams of more items than that prove nothing."""

MIN_LETTERS_PER_WORD = 1
"""On average over an n-gram. English has 4.5, formulas a little over 1; what has fewer is a row of numbers."""

MIN_SPAN_SHARE = 0.75
"""A passage whose indexed n-grams span fewer words than a run, and less of it than this, is not searched for."""

BITMAP_BITS_PER_KEY = 16
MIN_BITMAP_BITS = 1 << 12


@dataclass(frozen=True, slots=True)
class PassageIndex:
    """Made by `build_index`.

    Attributes:
        n: words of an n-gram.
        num_words: `[p]` words of each passage.
        num_searchable: `[p]` those of them that an indexed n-gram holds; 0: the passage cannot be found.
        span: `[p]` words from the first searchable to the last.
        bitmap: `[b]` uint64.
        keys, slots: `[t]` open-addressing table of n-gram keys and their number, -1 where free.
        starts: `[k + 1]` where postings of n-gram k begin.
        postings: `[m, 2]` (passage, word).
    """

    n: int
    num_words: NDArray[np.int64]
    num_searchable: NDArray[np.int64]
    span: NDArray[np.int64]
    bitmap: NDArray[np.uint64]
    keys: NDArray[np.uint64]
    slots: NDArray[np.int32]
    starts: NDArray[np.int64]
    postings: NDArray[np.int32]
    num_common: int
    num_empty: int

    @property
    def table(self) -> tuple[Any, ...]:
        """What `scan` takes."""
        return self.n, self.bitmap, self.keys, self.slots, self.starts, self.postings

    def in_order(self, hits: NDArray[np.int64]) -> NDArray[np.int64]:
        """What `scan` found, in the order (document, passage, word of the document)."""
        found: NDArray[np.int64] = hits[np.argsort(hits[:, 0] * len(self.num_words) + hits[:, 1], kind="stable")]
        return found

    def judge(
        self,
        hits: NDArray[np.int64],
        run_words: int | NDArray[np.int64],
        share: float,
        min_words: int | NDArray[np.int64] = 1,
    ) -> NDArray[np.int64]:
        """What the hits of `scan` add up to: `[f, 7]`, columns `FOUND_COLUMNS`, by document, passage, place.

        `start` and `stop` are bytes from `text[0]`. `is_run` tells the exact rule, a run of `run_words` or of the
        whole passage where it is shorter, from the fuzzy one: `share` of its words, and no fewer than `run_words`, in
        a stretch of text at most twice as long. Passages of fewer than `min_words` are not found. Both may be numbers
        per passage.
        """
        if not len(hits):
            return np.zeros((0, len(FOUND_COLUMNS)), np.int64)
        required = np.where(self.searchable(run_words, min_words), np.minimum(run_words, self.span), NEVER)
        least_covered = np.maximum(run_words, np.ceil(share * self.num_searchable - 1e-9).astype(np.int64))
        least_covered = np.where(self.num_words >= min_words, least_covered, NEVER)
        found: NDArray[np.int64] = judge(self.in_order(hits), self.n, self.num_words, required, least_covered)
        return found

    def searchable(
        self, run_words: int | NDArray[np.int64], min_words: int | NDArray[np.int64] = 1
    ) -> NDArray[np.bool_]:
        """`[p]`: whether a passage can be found at all: it has `min_words`, and enough of them are indexed."""
        wanted = np.minimum(run_words, np.ceil(MIN_SPAN_SHARE * self.num_words))
        found: NDArray[np.bool_] = (self.span >= wanted) & (self.span > 0) & (self.num_words >= min_words)
        return found


def build_index(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    items: NDArray[np.int64],
    n: int,
    max_items: int,
    ignored: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None,
    only: NDArray[np.bool_] | None = None,
) -> PassageIndex:
    """Index passages given as UTF-8 end to end.

    Args:
        items: `[p]` the item that each passage is of.
        n: words of an n-gram.
        max_items: n-grams of more items are not indexed.
        ignored: texts whose n-grams are not indexed.
        only: `[p]` the passages to index; the others only tell which n-grams are those of many items.
    """
    hashes, letters, word_offsets, _ = split_words(text, offsets, fold_table())
    keys, passages, words, says_much = _ngrams(hashes, letters, word_offsets, n)
    unique, inverse = np.unique(keys, return_inverse=True)
    common = _num_items(inverse, items[passages], len(unique)) > max_items
    if ignored is not None:
        common |= np.isin(unique, _keys_of(ignored, n))
    kept = says_much & ~common[inverse]
    if only is not None:
        kept &= only[passages]
    unique, inverse = np.unique(keys[kept], return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    postings = np.stack([passages[kept], words[kept]], axis=1).astype(np.int32)[order]
    starts = np.zeros(len(unique) + 1, np.int64)
    np.cumsum(np.bincount(inverse, minlength=len(unique)), out=starts[1:])
    searchable, span = _searchable(passages[kept], words[kept], n, len(offsets) - 1)
    bits = max(MIN_BITMAP_BITS, 1 << (max(1, len(unique)) * BITMAP_BITS_PER_KEY - 1).bit_length())
    table_size = max(16, 1 << (2 * len(unique)).bit_length())
    bitmap, table_keys, slots = _fill_table(unique, bits, table_size)
    return PassageIndex(
        n,
        np.diff(word_offsets),
        searchable,
        span,
        bitmap,
        table_keys,
        slots,
        starts,
        postings,
        num_common=int(common.sum()),
        num_empty=int((~says_much).sum()),
    )


def _keys_of(ignored: tuple[NDArray[np.uint8], NDArray[np.int64]], n: int) -> NDArray[np.uint64]:
    hashes, letters, word_offsets, _ = split_words(*ignored, fold_table())
    keys: NDArray[np.uint64] = _ngrams(hashes, letters, word_offsets, n)[0]
    return keys


def _num_items(inverse: NDArray[np.int64], items: NDArray[np.int64], num_keys: int) -> NDArray[np.int64]:
    """`[num_keys]`: in how many items each n-gram is."""
    if not len(inverse):
        return np.zeros(num_keys, np.int64)
    pairs = np.unique(inverse.astype(np.int64) * (items.max() + 1) + items)
    return np.bincount(pairs // (items.max() + 1), minlength=num_keys)


def _searchable(
    passages: NDArray[np.int64], words: NDArray[np.int64], n: int, num_passages: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(words held by n-grams, words from the first of these to the last), `[num_passages]` each."""
    same = np.diff(passages) == 0
    added = np.full(len(words), n, np.int64)
    if len(words):
        added[1:] = np.where(same, np.minimum(n, np.diff(words)), n)
    searchable = np.bincount(passages, added, minlength=num_passages).astype(np.int64)
    first = np.full(num_passages, NEVER, np.int64)
    last = np.full(num_passages, -n, np.int64)
    np.minimum.at(first, passages, words)
    np.maximum.at(last, passages, words)
    return searchable, np.where(searchable > 0, last + n - first, 0)


@compiled
def _ngrams(hashes, letters, word_offsets, n):  # type: ignore[no-untyped-def]
    """(key, passage, first word, whether it says much) of each n-gram, in order."""
    total = 0
    for row in range(len(word_offsets) - 1):
        total += max(0, word_offsets[row + 1] - word_offsets[row] - n + 1)
    keys = np.empty(total, np.uint64)
    passages = np.empty(total, np.int64)
    words = np.empty(total, np.int64)
    says_much = np.empty(total, np.bool_)
    power = oldest_power(n)
    count = 0
    for row in range(len(word_offsets) - 1):
        first, stop = word_offsets[row], word_offsets[row + 1]
        ngram = np.uint64(0)
        for w in range(first, stop):
            ngram = roll(ngram, hashes[w], hashes[w - n] if w - n >= first else np.uint64(0), power)
            if w - first < n - 1:
                continue
            num_letters, different = 0, 0
            for a in range(w - n + 1, w + 1):
                num_letters += letters[a]
                seen = False
                for b in range(w - n + 1, a):
                    seen = seen or hashes[a] == hashes[b]
                different += not seen
            keys[count], passages[count], words[count] = ngram_key(ngram), row, w - first - n + 1
            says_much[count] = num_letters >= MIN_LETTERS_PER_WORD * n and 2 * different > n
            count += 1
    return keys, passages, words, says_much


@compiled
def _fill_table(unique, bits, size):  # type: ignore[no-untyped-def]
    """(bitmap, keys, slots) of n-gram keys; both sizes are powers of two."""
    bitmap = np.zeros(bits // 64, np.uint64)
    keys = np.zeros(size, np.uint64)
    slots = np.full(size, -1, np.int32)
    for number in range(len(unique)):
        key = unique[number]
        bit = key >> np.uint64(20) & np.uint64(bits - 1)
        bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        at = np.int64(key & np.uint64(size - 1))
        while slots[at] >= 0:
            at = (at + 1) & (size - 1)
        keys[at], slots[at] = key, number
    return bitmap, keys, slots
