"""Hashed n-grams of words: the features of our linear text classifiers, straight from UTF-8.

A token is

* a run of letters and digits: ASCII letters in lower case, every digit taken as 0, so that all years are one word;
* a single character where the script writes no spaces (Han, kana, Thai, Lao, Myanmar, Khmer) and for every sign
  beyond ASCII: two of them in a row then are the character bigrams that such languages need;
* a run of one and the same ASCII sign or line end ("...", "----", an empty line): they tell prose from menus.

A feature is a token, two or three tokens in a row, or `char_ngram` characters in a row; its place in the table of
weights is the top bits of a 64-bit hash (Weinberger et al., "Feature Hashing for Large Scale Multitask Learning",
2009, without the sign hash: with 2^20 places collisions are rare enough). fastText (Joulin et al., "Bag of Tricks for
Efficient Text Classification", 2016) hashes bigrams only and keeps a vocabulary of words; without one, training is
one pass less and the model is one array. Letters beyond ASCII keep their case.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled

_SPACE, _WORD, _SIGN, _SINGLE, _THAI_LAO, _MYANMAR_KHMER = range(6)


def _byte_kinds() -> NDArray[np.uint8]:
    """What a byte is when a character begins with it (continuation bytes are met inside words only)."""
    kinds = np.full(256, _SPACE, np.uint8)
    kinds[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"]] = _WORD
    kinds[[*b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\n"]] = _SIGN
    kinds[0x80:] = _WORD
    kinds[0xC2] = _SINGLE  # Latin-1 signs
    kinds[0xE2:0xEA] = _SINGLE  # punctuation, symbols, kana, Han; Hangul (EA-ED) writes spaces
    kinds[0xEF:0xF8] = _SINGLE  # compatibility and full-width forms, emoji, rare Han
    kinds[0xE0], kinds[0xE1] = _THAI_LAO, _MYANMAR_KHMER
    return kinds


def _folded_bytes() -> NDArray[np.uint8]:
    folded = np.arange(256, dtype=np.uint8)
    folded[ord("A") : ord("Z") + 1] += 32
    folded[ord("0") : ord("9") + 1] = ord("0")
    return folded


KINDS = _byte_kinds()
FOLDED = _folded_bytes()

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_PAIR = np.uint64(0xC2B2AE3D27D4EB4F)
_TRIPLE = np.uint64(0x165667B19E3779F9)
_CHARACTERS = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE, _ZERO = np.uint64(1), np.uint64(0)


@compiled(inline="always")
def _kind(text: NDArray[np.uint8], i: int, stop: int) -> Any:
    kind = KINDS[text[i]]
    if kind < _THAI_LAO:
        return kind
    following = text[i + 1] if i + 1 < stop else 0
    if kind == _THAI_LAO:
        return _SINGLE if 0xB8 <= following <= 0xBB else _WORD
    return _SINGLE if 0x80 <= following <= 0x82 or 0x9E <= following <= 0x9F else _WORD


@compiled(inline="always")
def _spread(value: Any) -> Any:
    value = (value ^ (value >> _HALF)) * _MIX
    return value ^ (value >> _HALF)


@compiled
def hash_features(
    text: NDArray[np.uint8],
    start: int,
    stop: int,
    seed: int,
    bits: int,
    max_ngram: int,
    char_ngram: int,
    out: NDArray[np.uint32],
) -> int:
    """Write the places, each < 2^bits, of the features of `text[start:stop]`; `out` has room for `num_places`.

    Returns:
        how many; a feature that occurs twice is written twice.
    """
    shift = np.uint64(64 - bits)
    first = _OFFSET ^ (np.uint64(seed) * _MIX)
    before = before_that = _ZERO
    n, i = 0, start
    while i < stop:
        kind = _kind(text, i, stop)
        byte = text[i]
        if kind == _SPACE:
            i += 1
            continue
        token = (first ^ np.uint64(FOLDED[byte])) * _PRIME
        i += 1
        if kind == _WORD:
            while i < stop and _kind(text, i, stop) == _WORD:
                token = (token ^ np.uint64(FOLDED[text[i]])) * _PRIME
                i += 1
        elif kind == _SIGN:
            if i < stop and text[i] == byte:
                token = (token ^ _HALF) * _PRIME
                while i < stop and text[i] == byte:
                    i += 1
        else:
            while i < stop and text[i] & 0xC0 == 0x80:
                token = (token ^ np.uint64(text[i])) * _PRIME
                i += 1
        token = _spread(token) | _ONE
        out[n] = token >> shift
        n += 1
        if max_ngram > 1 and before:
            out[n] = _spread(before * _PAIR + token) >> shift
            n += 1
            if max_ngram > 2 and before_that:
                out[n] = _spread((before_that * _TRIPLE + before) * _PAIR + token) >> shift
                n += 1
        before_that = before
        before = token
    if char_ngram:
        n = _hash_characters(text, start, stop, first, shift, char_ngram, out, n)
    return n


@compiled
def _hash_characters(
    text: NDArray[np.uint8],
    start: int,
    stop: int,
    first: Any,
    shift: Any,
    length: int,
    out: NDArray[np.uint32],
    n: int,
) -> int:
    """Features of `length` characters in a row, white space as one blank; a rolling polynomial of code points."""
    ring = np.zeros(length, np.uint64)
    power = _ONE
    for _ in range(length):
        power *= _PAIR
    value, seen, i = _ZERO, 0, start
    while i < stop:
        byte = text[i]
        character = np.uint64(FOLDED[byte])
        i += 1
        if byte <= 0x20:
            character = _HALF
            while i < stop and text[i] <= 0x20:
                i += 1
        while i < stop and text[i] & 0xC0 == 0x80:
            character = (character << np.uint64(8)) | np.uint64(text[i])
            i += 1
        slot = seen % length
        value = value * _PAIR + character - ring[slot] * power
        ring[slot] = character
        seen += 1
        if seen >= length:
            out[n] = _spread(value ^ first ^ _CHARACTERS) >> shift
            n += 1
    return n


@compiled
def count_tokens(text: NDArray[np.uint8], start: int, stop: int) -> int:
    """Words of `text[start:stop]`: runs of letters and digits, and characters of scripts without spaces."""
    n, i = 0, start
    while i < stop:
        kind = _kind(text, i, stop)
        lead = text[i]
        i += 1
        if kind == _WORD:
            n += 1
            while i < stop and _kind(text, i, stop) == _WORD:
                i += 1
        elif kind == _SINGLE:
            n += lead != 0xC2 and lead != 0xE2  # signs are no words
            while i < stop and text[i] & 0xC0 == 0x80:
                i += 1
    return n


def num_places(num_bytes: int, max_ngram: int, char_ngram: int) -> int:
    """Room that the features of a text need at most."""
    return num_bytes * (max_ngram + (char_ngram > 0)) + 1
