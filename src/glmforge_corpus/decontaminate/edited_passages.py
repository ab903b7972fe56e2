"""Short passages that were edited: found by what they have in common with a text, and proved by counting the edits.

A question of 15 words with one of them changed has no run of 13 words left, and its 6-grams cover fewer words than
would be proof. Such passages, up to `MAX_WORDS`, are looked for by 4-grams, and every candidate is aligned with the
text: the fewest words to be replaced, omitted or added (Levenshtein distance, over words, with free ends in the text;
Sellers, 1980) must be no more than `edits` of the passage's words. 4-grams of many passages are not indexed, so that
what instructions have in common ("Write a function to find ...") suggests nothing, and the number of edits allowed is a
share of the words that indexed 4-grams hold: two tasks that differ in the one word that counts are two tasks.

A passage of which e words were edited keeps all but 4 e of its 4-grams (Jokinen and Ukkonen, 1991): places with fewer
are not aligned, which keeps the cost of a clean text at that of looking its 4-grams up.
"""

# mypy: disable-error-code="assignment"
# To a type checker, a number of an array and one that counts are of different types.

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge.data.passages.normalised_words import fold_table, split_words
from glmforge.data.passages.passage_index import PassageIndex, build_index
from glmforge.data.passages.passage_search import FOUND_COLUMNS

SEED_WORDS = 4
MAX_WORDS = 40
"""Longer passages keep enough of their 6-grams."""

Texts = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class EditedPassages:
    """Made by `build_edited`.

    Attributes:
        index: of the 4-grams of the passages that are short; the others are there, without any.
        hashes, word_offsets: words of all passages.
        edits: `[p]` words that may differ; 0: it must stand there whole; -1: it is not looked for.
        fewest: `[p]` 4-grams that a copy with this many edits has at least.
    """

    index: PassageIndex
    hashes: NDArray[np.uint64]
    word_offsets: NDArray[np.int64]
    edits: NDArray[np.int64]
    fewest: NDArray[np.int64]

    def judge(self, hits: NDArray[np.int64], text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """What the hits of `scan` add up to: `[f, 7]` as of `PassageIndex.judge`; covered words are those left as they
        were."""
        hits = self.index.in_order(hits)
        places = _candidates(hits, self.edits, self.fewest, self.index.num_words) if len(hits) else hits
        rows = np.unique(places[:, 0]) if len(places) else np.zeros(0, np.int64)
        found = [np.zeros((0, len(FOUND_COLUMNS)), np.int64)]
        for row in rows:
            start, stop = int(offsets[row]), int(offsets[row + 1])
            words, _, _, starts = split_words(text, np.array([start, stop]), fold_table())
            here = places[places[:, 0] == row]
            found.append(_align(here, words, starts, stop, self.hashes, self.word_offsets, self.edits))
        return np.concatenate(found)


def build_edited(
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    items: NDArray[np.int64],
    wanted: NDArray[np.bool_],
    share: float,
    max_items: int,
    ignored: Texts | None = None,
) -> EditedPassages:
    """Index the passages that are `wanted [p]` and no longer than `MAX_WORDS`; the rest as of `build_index`.

    Args:
        share: of a passage's words that may be edited.
    """
    hashes, _, word_offsets, _ = split_words(text, offsets, fold_table())
    num_words = np.diff(word_offsets)
    short = wanted & (num_words <= MAX_WORDS)
    index = build_index(text, offsets, items, SEED_WORDS, max_items, ignored, only=short)
    edits = np.where(short & (index.num_searchable > 0), np.floor(share * index.num_searchable).astype(np.int64), -1)
    num_indexed = np.bincount(index.postings[:, 0], minlength=len(edits)).astype(np.int64)
    return EditedPassages(index, hashes, word_offsets, edits, np.maximum(1, num_indexed - SEED_WORDS * edits))


@compiled
def _candidates(hits, edits, fewest, num_words):  # type: ignore[no-untyped-def]
    """Hits in the order (document, passage, word of the document) -> (document, passage, first word, end) to align."""
    out = np.empty((64, 4), np.int64)
    count = 0
    a = 0
    while a < len(hits):
        row, passage = hits[a, 0], hits[a, 1]
        b = a
        while b < len(hits) and hits[b, 0] == row and hits[b, 1] == passage:
            b += 1
        allowed = edits[passage]
        width = num_words[passage] + allowed
        right = a
        last_end = np.int64(-1)
        for left in range(a, b):
            right = max(right, left)
            while right < b and hits[right, 2] - hits[left, 2] <= width:
                right += 1
            if allowed < 0 or right - left < fewest[passage]:
                continue
            first = hits[left, 2] - hits[left, 3] - allowed
            if first + width + allowed <= last_end:
                continue
            last_end = first + width + 2 * allowed
            if count == len(out):
                larger = np.empty((2 * len(out), 4), np.int64)
                larger[:count] = out
                out = larger
            out[count, 0], out[count, 1], out[count, 2], out[count, 3] = row, passage, max(first, 0), last_end
            count += 1
        a = b
    return out[:count].copy()


@compiled
def _align(places, words, starts, text_end, passage_words, word_offsets, edits):  # type: ignore[no-untyped-def]
    """The places of one document at which a passage stands with few enough edits, one of overlapping ones each."""
    out = np.empty((len(places), 7), np.int64)
    count = 0
    longest = np.int64(0)
    for place in range(len(places)):
        longest = max(longest, word_offsets[places[place, 1] + 1] - word_offsets[places[place, 1]])
    costs, begins = np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    for place in range(len(places)):
        passage, first = places[place, 1], places[place, 2]
        end = min(places[place, 3], len(words))
        if count and out[count - 1, 1] == passage and starts[min(first, len(words) - 1)] < out[count - 1, 3]:
            first_start = out[count - 1, 3]
            while first < end and starts[first] < first_start:
                first += 1
        p0 = word_offsets[passage]
        size = word_offsets[passage + 1] - p0
        best, best_begin, best_end = np.int64(edits[passage] + 1), np.int64(0), np.int64(0)
        for k in range(size + 1):
            costs[k], begins[k] = k, first
        for t in range(first, end):
            diagonal, diagonal_begin = costs[0], begins[0]
            costs[0], begins[0] = 0, t + 1
            for k in range(1, size + 1):
                cost = diagonal + (passage_words[p0 + k - 1] != words[t])
                begin = diagonal_begin
                if costs[k] + 1 < cost:
                    cost, begin = costs[k] + 1, begins[k]
                if costs[k - 1] + 1 < cost:
                    cost, begin = costs[k - 1] + 1, begins[k - 1]
                diagonal, diagonal_begin = costs[k], begins[k]
                costs[k], begins[k] = cost, begin
            if costs[size] < best:
                best, best_begin, best_end = costs[size], begins[size], t + 1
        if best <= edits[passage]:
            out[count, 0], out[count, 1] = places[place, 0], passage
            out[count, 2] = starts[best_begin]
            out[count, 3] = starts[best_end] if best_end < len(words) else text_end
            out[count, 4], out[count, 5], out[count, 6] = 0, size - best, 0
            count += 1
    return out[:count].copy()
