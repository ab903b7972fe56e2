"""A quality score from text statistics alone, for those who have no seeds to train a classifier with.

It is a heuristic, not a measure of what a text is worth: the product of six numbers in [0, 1], each of which is 1 for
ordinary prose and falls linearly as one kind of defect grows. A factor is 0.5 exactly at a published filter's limit,
so that a text which is fine otherwise scores 0.5 where that filter would begin to remove it:

| factor     | statistic                                                    | 1 from | 0.5 at | 0 at |
|------------|--------------------------------------------------------------|--------|--------|------|
| length     | words; a Han, kana or Thai character is half a word (Gopher: 50) | 100 | 50     | 0    |
| letters    | letters / characters but white space (Gopher: in 80 % of words)  | 0.8 | 0.65   | 0.5  |
| sentences  | sentence ends per word (C4 needs sentences)                  | 0.02   | 0.01   | 0    |
| long lines | characters in lines shorter than 30 (FineWeb: 0.67)          | 0.34   | 0.67   | 1    |
| repetition | characters in lines that occurred before (Gopher: 0.2)       | 0      | 0.2    | 0.4  |
| symbols    | # { } < > \\| \\ = ~ ^ * _ / characters but white space (Gopher: # per word 0.1) | 0 | 0.05 | 0.1 |

(Rae et al. 2021, arXiv:2112.11446; Raffel et al. 2019, arXiv:1910.10683; Penedo et al. 2024, arXiv:2406.17557. Where
the rule counts words or lines and we characters, the limit is argued, not taken over.) Made for prose in any
language; programs score low by design.
"""

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.filter.linear.hashed_features import count_tokens

SHORT_LINE = 30
"""Columns; a wide character (Han, kana, Hangul) takes two."""

WORDS, SPACELESS, CHARACTERS, LETTERS, SYMBOLS, SENTENCES, COLUMNS, SHORT_COLUMNS, LINE_BYTES, REPEATED_BYTES = range(
    10
)
"""Columns of `text_statistics`."""

_OTHER, _BLANK, _LETTER, _SYMBOL, _END, _CONTINUATION = range(6)


def _classes() -> NDArray[np.uint8]:
    classes = np.full(256, _OTHER, np.uint8)
    classes[: 0x20 + 1] = _BLANK
    classes[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]] = _LETTER
    classes[[*b"#{}<>|\\=~^*_"]] = _SYMBOL
    classes[[*b".!?"]] = _END
    classes[0x80:0xC0] = _CONTINUATION
    classes[0xC3:0xE2] = classes[0xE3:0xEF] = _LETTER
    return classes


CLASSES = _classes()


@compiled
def text_statistics(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[n, 10]` counts; columns as named above."""
    out = np.zeros((len(offsets) - 1, 10))
    longest = 0
    for row in range(len(out)):
        longest = max(longest, offsets[row + 1] - offsets[row])
    size = 64
    while size < min(longest // 8, 1 << 20):
        size *= 2
    seen = np.zeros(size, np.uint64)
    for row in range(len(out)):
        _count(text, offsets[row], offsets[row + 1], seen, out[row])
    return out


@compiled
def _count(text: NDArray[np.uint8], start: int, stop: int, seen: NDArray[np.uint64], out: NDArray[np.float64]) -> None:
    characters = letters = symbols = sentences = spaceless = 0
    size = 64
    while size < min((stop - start) // 8, len(seen)):
        size *= 2
    seen[:size] = 0
    i = start
    while i < stop:
        columns, line_start, digest = 0, i, np.uint64(0xCBF29CE484222325)
        while i < stop and text[i] != 10:
            byte = text[i]
            digest = (digest ^ np.uint64(byte)) * np.uint64(0x100000001B3)
            kind = CLASSES[byte]
            i += 1
            if kind == _CONTINUATION:
                continue
            columns += 1
            if kind == _BLANK:
                continue
            characters += 1
            if kind == _LETTER:
                letters += 1
                if byte >= 0xE3:
                    columns += 1
                    spaceless += byte < 0xEA
                    sentences += byte == 0xE3 and i + 1 < stop and text[i] == 0x80 and text[i + 1] == 0x82
                elif byte == 0xE0 and i + 1 < stop and 0xB8 <= text[i] <= 0xBB:
                    spaceless += 1
                    sentences += i + 2 >= stop or text[i + 2] <= 0x20
                elif (byte == 0xE0 or byte == 0xE1) and i + 1 < stop:
                    sentences += _is_full_stop(byte, text[i], text[i + 1])
            elif kind == _SYMBOL:
                symbols += 1
            elif kind == _END:
                sentences += i >= stop or text[i] <= 0x22 or text[i] == 0x29 or text[i] == 0xE2
            elif byte == 0xEF and i + 1 < stop and text[i] == 0xBC:
                sentences += text[i + 1] == 0x81 or text[i + 1] == 0x9F
        length = i - line_start
        i += 1
        if columns == 0:
            continue
        out[COLUMNS] += columns
        out[LINE_BYTES] += length
        if columns < SHORT_LINE:
            out[SHORT_COLUMNS] += columns
        if _was_seen(digest, seen, size):
            out[REPEATED_BYTES] += length
    out[WORDS] = count_tokens(text, start, stop)
    out[SPACELESS], out[CHARACTERS], out[LETTERS] = spaceless, characters, letters
    out[SYMBOLS], out[SENTENCES] = symbols, sentences


@compiled(inline="always")
def _is_full_stop(first: int, second: int, third: int) -> bool:
    """Of Indic scripts, Myanmar or Khmer. (Thai and Lao end a sentence with a blank.)"""
    if first == 0xE0:
        return second == 0xA5 and (third == 0xA4 or third == 0xA5)
    return (second == 0x81 and (third == 0x8A or third == 0x8B)) or (
        second == 0x9F and (third == 0x94 or third == 0x95)
    )


@compiled
def _was_seen(digest: np.uint64, seen: NDArray[np.uint64], size: int) -> bool:
    """Whether a line came before; a full neighbourhood forgets lines, so that memory and time stay bounded."""
    digest = (digest ^ (digest >> np.uint64(29))) | np.uint64(1)
    mask = size - 1
    slot = int((digest * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)) & mask
    for _ in range(8):
        if seen[slot] == digest:
            return True
        if seen[slot] == 0:
            seen[slot] = digest
            return False
        slot = (slot + 1) & mask
    return False


def heuristic_quality(text_bytes: NDArray[np.uint8], text_offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[n]` scores in [0, 1]; see the module."""
    counts = text_statistics(text_bytes, text_offsets).T
    words = counts[WORDS] - counts[SPACELESS] / 2
    visible = np.maximum(counts[CHARACTERS], 1)
    factors = (
        _rise(words, 0, 100),
        _rise(counts[LETTERS] / visible, 0.5, 0.8),
        _rise(counts[SENTENCES] / np.maximum(words, 1), 0, 0.02),
        1 - _rise(counts[SHORT_COLUMNS] / np.maximum(counts[COLUMNS], 1), 0.34, 1),
        1 - _rise(counts[REPEATED_BYTES] / np.maximum(counts[LINE_BYTES], 1), 0, 0.4),
        1 - _rise(counts[SYMBOLS] / visible, 0, 0.1),
    )
    return np.prod(factors, axis=0)  # type: ignore[no-any-return]


def _rise(values: NDArray[np.float64], zero: float, one: float) -> NDArray[np.float64]:
    return np.clip((values - zero) / (one - zero), 0, 1)
