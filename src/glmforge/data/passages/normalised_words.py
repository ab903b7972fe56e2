"""Words of a text as a comparison sees them: lower-case, without punctuation, accents or width, found in raw UTF-8.

A word is a run of letters and digits. Punctuation, symbols, spaces and line ends separate words, however many there
are of them; apostrophes and invisible characters are omitted ("don't" and "dont" are one word). Letters are folded
by a table made of Unicode's own data: case, accents (NFKD), full-width and mathematical forms. In scripts that put no
spaces between words (`UNSPACED`), every character is a word.

Punctuation separates here where GPT-3's decontamination (arXiv:2005.14165, appendix C) deletes it: "x^2+1" is then
the same three words however a formula is spaced, at the price of words that carry less, for which
`passage_index.py` has a rule.

Compiled loops take `next_word` and the table of `fold_table`; they make no string.
"""

import functools
import unicodedata

import numpy as np
from numpy.typing import NDArray

from glmforge.data.bytes_kernels import character_at
from glmforge.data.compiled import compiled, non_allocating

UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),  # ideographic iteration mark, closing mark, zero
    (0x3040, 0x312F),  # kana, Bopomofo
    (0x31A0, 0x31FF),  # Bopomofo, kana
    (0x3400, 0x4DBF),  # ideographs
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),  # Yi
    (0xA500, 0xA63F),  # Vai
    (0xA980, 0xA9FF),  # Javanese, Burmese
    (0xAA60, 0xAADF),  # Burmese, Tai Viet
    (0xF900, 0xFAFF),  # ideographs
    (0xFF66, 0xFF9F),  # kana of half width
    (0x12000, 0x1254F),  # cuneiform
    (0x13000, 0x1345F),  # hieroglyphs
    (0x17000, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # kana, Nushu
)
"""First and last code points, ascending, of scripts that are written without spaces between words: between two spaces
stands a clause or a whole page there. Tibetan has a mark after every syllable instead; Korean and the scripts of India,
Ethiopia and the Middle East are written with spaces. All ideographs beyond U+1FFFF belong here, too."""

SEPARATOR = 0
IGNORED = 1
SINGLE = 1 << 31
"""Flag of a character that is a word of its own."""

TABLE_SIZE = 0x20000
"""Code points with an entry: the first two planes. Beyond are ideographs, each a word, up to `LAST_IDEOGRAPH`."""

LAST_IDEOGRAPH = 0x3FFFF

_INVISIBLE = frozenset("'\u2019\u2018\u02bc\u00ad\u200b\u200c\u200d\u2060\ufeff")

_SINGLE = np.uint32(SINGLE)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(0xCBF29CE484222325)
_BASE = np.uint64(0xD6E8FEB86659FD93)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def fold_character(character: str) -> int:
    """What a character is in a word: `SEPARATOR`, `IGNORED`, or its folded code point, with `SINGLE` or without."""
    if character in _INVISIBLE or unicodedata.category(character) in ("Mn", "Me"):
        return IGNORED
    decomposed = unicodedata.normalize("NFKD", character)
    base = [part for part in decomposed if unicodedata.category(part) != "Mn"]
    folded = (base[0] if len(base) == 1 else character).lower()
    folded = folded if len(folded) == 1 else character
    if not (folded.isalnum() or unicodedata.category(folded) == "Mc"):
        return SEPARATOR
    return ord(folded) | (SINGLE if any(low <= ord(folded) <= high for low, high in UNSPACED) else 0)


@functools.cache
def fold_table() -> NDArray[np.uint32]:
    """`[TABLE_SIZE]`: `fold_character` of each code point. Takes some tenths of a second, once a process."""
    surrogates = range(0xD800, 0xE000)
    codes = [SEPARATOR if code in surrogates else fold_character(chr(code)) for code in range(TABLE_SIZE)]
    return np.array(codes, np.uint32)


@non_allocating
def _fold_at(text, i, end, fold):  # type: ignore[no-untyped-def]
    """(folded character, its bytes) at `text[i]`; a byte that begins no whole character separates."""
    code, step = character_at(text, i, end)
    if step == 1 and code >= 0x80:
        return np.uint32(SEPARATOR), 1
    if code < TABLE_SIZE:
        return fold[np.uintp(code)], step
    if code <= LAST_IDEOGRAPH:
        return np.uint32(code) | _SINGLE, step
    return np.uint32(SEPARATOR), step


@non_allocating
def next_word(text, i, end, fold):  # type: ignore[no-untyped-def]
    """The first word of `text[i:end]`: (hash, start, stop, letters); start is -1 where there is none.

    `letters` counts ASCII letters once and all other letters twice, digits not at all: a rough measure of how much a
    word says. Go on at `stop`.
    """
    while i < end:
        code, step = _fold_at(text, i, end, fold)
        start = i
        i += step
        if code <= IGNORED:
            continue
        word_hash = (_SEED ^ np.uint64(code)) * _PRIME
        letters = 0 if 48 <= code <= 57 else (1 if code < 128 else 2)
        stop = i
        if code < _SINGLE:
            while i < end:
                code, step = _fold_at(text, i, end, fold)
                if code == SEPARATOR or code >= _SINGLE:
                    break
                i += step
                if code != IGNORED:
                    word_hash = (word_hash ^ np.uint64(code)) * _PRIME
                    letters += 0 if 48 <= code <= 57 else (1 if code < 128 else 2)
                    stop = i
        return word_hash ^ (word_hash >> np.uint64(32)), start, stop, letters
    return np.uint64(0), -1, end, 0


@non_allocating
def roll(ngram, word, oldest, power):  # type: ignore[no-untyped-def]
    """The running sum over the last n words when `word` comes and `oldest` (0 while there are fewer than n) goes."""
    return (ngram - oldest * power) * _BASE + word


@non_allocating
def oldest_power(n):  # type: ignore[no-untyped-def]
    """What the oldest of n words is multiplied with in the running sum."""
    power = np.uint64(1)
    for _ in range(n - 1):
        power *= _BASE
    return power


@non_allocating
def ngram_key(ngram):  # type: ignore[no-untyped-def]
    """The running sum with its bits stirred (splitmix64's last steps), for hash tables."""
    ngram = (ngram ^ (ngram >> np.uint64(30))) * _MIX_1
    ngram = (ngram ^ (ngram >> np.uint64(27))) * _MIX_2
    return ngram ^ (ngram >> np.uint64(31))


@compiled
def split_words(text, offsets, fold):  # type: ignore[no-untyped-def]
    """Words of texts end to end: (hashes `[w]`, letters `[w]`, offsets `[n + 1]` into both, starts `[w]`)."""
    capacity = (offsets[-1] - offsets[0]) // 2 + len(offsets)
    hashes = np.empty(capacity, np.uint64)
    letters = np.empty(capacity, np.int32)
    starts = np.empty(capacity, np.int64)
    word_offsets = np.zeros(len(offsets), np.int64)
    count = 0
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        while True:
            word, start, i, num_letters = next_word(text, i, end, fold)
            if start < 0:
                break
            hashes[count], letters[count], starts[count] = word, num_letters, start
            count += 1
        word_offsets[row + 1] = count
    return hashes[:count].copy(), letters[:count].copy(), word_offsets, starts[:count].copy()
