"""The compiled loops that look for indexed passages in text: `scan` finds n-grams, `judge` what they add up to."""

import numpy as np

from glmforge.data.compiled import compiled, non_allocating
from glmforge.data.passages.normalised_words import next_word, ngram_key, oldest_power, roll

MAX_GAP_WORDS = 32
"""Between two places of one copy lie at most this many words, or half the passage if that is more: of text with a
tenth of its words changed, 32 words without 6 intact ones in a row are rare."""

FOUND_COLUMNS = ("document", "passage", "start", "stop", "run_words", "covered_words", "is_run")

NEVER = 1 << 40
"""More words than any passage has."""


@compiled
def scan(text, offsets, fold, table, short_table):  # type: ignore[no-untyped-def]
    """Each n-gram of the texts that is indexed, once per posting: `[h, 6]` for each of two tables.

    Columns: document, passage, word of the document, word of the passage, first byte, end of the last byte. A table is
    (n, bitmap, keys, slots, starts, postings).
    """
    n, short = table[0], short_table[0]
    hits, short_hits = np.empty((1024, 6), np.int64), np.empty((1024, 6), np.int64)
    num_hits, num_short_hits = 0, 0
    power, short_power = oldest_power(n), oldest_power(short)
    longest = max(n, short)
    recent = np.zeros(longest, np.uint64)
    recent_starts = np.zeros(longest, np.int64)
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        ngram, short_ngram = np.uint64(0), np.uint64(0)
        recent[:] = 0
        count, ring = 0, 0
        while True:
            word, start, i, _ = next_word(text, i, end, fold)
            if start < 0:
                break
            ngram = roll(ngram, word, recent[_before(ring, n, longest)], power)
            short_ngram = roll(short_ngram, word, recent[_before(ring, short, longest)], short_power)
            recent[ring], recent_starts[ring] = word, start
            ring = ring + 1 if ring + 1 < longest else 0
            count += 1
            if count >= short:
                slot = _slot(short_ngram, short_table[1], short_table[2], short_table[3])
                if slot >= 0:
                    first = recent_starts[_before(ring, short, longest)]
                    short_hits, num_short_hits = _add_postings(
                        short_hits, num_short_hits, slot, short_table[4], short_table[5], row, count - short, first, i
                    )
            if count >= n:
                slot = _slot(ngram, table[1], table[2], table[3])
                if slot >= 0:
                    first = recent_starts[_before(ring, n, longest)]
                    hits, num_hits = _add_postings(hits, num_hits, slot, table[4], table[5], row, count - n, first, i)
    return hits[:num_hits].copy(), short_hits[:num_short_hits].copy()


@non_allocating
def _before(ring, back, size):  # type: ignore[no-untyped-def]
    """The place `back` before another in a ring."""
    return ring - back if ring >= back else ring - back + size


@non_allocating
def _slot(ngram, bitmap, keys, slots):  # type: ignore[no-untyped-def]
    """The number of an n-gram; -1 if it is not indexed."""
    key = ngram_key(ngram)
    bit = key >> np.uint64(20) & np.uint64(len(bitmap) * 64 - 1)
    if not bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1):
        return np.int64(-1)
    mask = np.int64(len(keys) - 1)
    at = np.int64(key & np.uint64(mask))
    while slots[at] >= 0 and keys[at] != key:
        at = (at + 1) & mask
    return np.int64(slots[at])


@compiled
def _add_postings(hits, num_hits, slot, starts, postings, row, word, first, end):  # type: ignore[no-untyped-def]
    """(hits, their number) with an n-gram's; the array is doubled where it is full."""
    for posting in range(starts[slot], starts[slot + 1]):
        if num_hits == len(hits):
            larger = np.empty((2 * len(hits), 6), np.int64)
            larger[:num_hits] = hits
            hits = larger
        hits[num_hits, 0], hits[num_hits, 1] = row, postings[posting, 0]
        hits[num_hits, 2], hits[num_hits, 3] = word, postings[posting, 1]
        hits[num_hits, 4], hits[num_hits, 5] = first, end
        num_hits += 1
    return hits, num_hits


@compiled
def judge(hits, n, num_words, required, least_covered):  # type: ignore[no-untyped-def]
    """Hits in the order (document, passage, word of the document) -> what is found, `[f, 7]`."""
    longest = num_words.max() + 1
    found = np.empty((64, 7), np.int64)
    num_found = 0
    seen_at = np.full(longest, -NEVER, np.int64)  # word of the passage -> where in the document its n-gram was last
    run_first = np.zeros(longest, np.int64)
    run_start = np.zeros(longest, np.int64)
    cover = np.zeros(longest, np.int32)
    a = 0
    while a < len(hits):
        passage = hits[a, 1]
        gap = n + max(MAX_GAP_WORDS, num_words[passage] // 2)
        b = a + 1
        while (
            b < len(hits) and hits[b, 0] == hits[a, 0] and hits[b, 1] == passage and hits[b, 2] - hits[b - 1, 2] <= gap
        ):
            b += 1
        if (b - a) * n >= min(required[passage], least_covered[passage]):
            run, start, stop = _longest_run(hits, a, b, n, required[passage], seen_at, run_first, run_start)
            covered, left, right = _best_window(hits, a, b, n, 2 * num_words[passage] + n, cover)
            is_run = run >= required[passage]
            if covered >= least_covered[passage]:
                start = min(start, hits[left, 4]) if is_run else hits[left, 4]
                stop = max(stop, hits[right, 5])
            if is_run or covered >= least_covered[passage]:
                if num_found == len(found):
                    larger = np.empty((2 * len(found), 7), np.int64)
                    larger[:num_found] = found
                    found = larger
                found[num_found, 0], found[num_found, 1] = hits[a, 0], passage
                found[num_found, 2], found[num_found, 3] = start, stop
                found[num_found, 4], found[num_found, 5], found[num_found, 6] = run, covered, is_run
                num_found += 1
        a = b
    return found[:num_found].copy()


@compiled
def _longest_run(hits, a, b, n, required, seen_at, run_first, run_start):  # type: ignore[no-untyped-def]
    """(words of the longest common run, first byte, end) over the runs that are long enough.

    Two n-grams whose words overlap or touch, at the same distance in text and passage, are one run: between them lie
    n-grams that are not indexed, but no word that differs. An n-gram that the passage has more than once is looked at
    from its last place to its first: what each goes on from lies before it, and is still noted where it was last.
    """
    best, start, stop = 0, np.int64(1 << 60), np.int64(-1)
    same = a
    while same < b:
        at, after = hits[same, 2], same + 1
        while after < b and hits[after, 2] == at:
            after += 1
        for h in range(after - 1, same - 1, -1):
            word = hits[h, 3]
            first, first_byte = word, hits[h, 4]
            for back in range(1, min(n, word) + 1):
                if seen_at[word - back] == at - back:
                    first, first_byte = run_first[word - back], run_start[word - back]
                    break
            seen_at[word], run_first[word], run_start[word] = at, first, first_byte
            run = word - first + n
            best = max(best, run)
            if run >= required:
                start, stop = min(start, first_byte), max(stop, hits[h, 5])
        same = after
    for h in range(a, b):
        seen_at[hits[h, 3]] = -NEVER
    return best, start, stop


@compiled
def _best_window(hits, a, b, n, width, cover):  # type: ignore[no-untyped-def]
    """(most words of the passage that `width` words of text cover, first hit, last hit)."""
    best, best_left, best_right = 0, a, a
    covered, left = 0, a
    for right in range(a, b):
        covered += _add(cover, hits[right, 3], n, 1)
        while hits[right, 2] + n - hits[left, 2] > width:
            covered -= _add(cover, hits[left, 3], n, -1)
            left += 1
        if covered > best:
            best, best_left, best_right = covered, left, right
    for h in range(left, b):
        _add(cover, hits[h, 3], n, -1)
    return best, best_left, best_right


@compiled
def _add(cover, word, n, change):  # type: ignore[no-untyped-def]
    """Count an n-gram of the passage in or out; how many of its words are newly covered, or no longer."""
    switched = 0
    for k in range(word, word + n):
        before = cover[k]
        cover[k] += change
        switched += before == 0 or cover[k] == 0
    return switched
