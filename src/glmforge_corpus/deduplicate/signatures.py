"""Texts -> sets of hashed shingles -> MinHash signatures -> bands.

A text is first a sequence of *units*, each a 64-bit hash; a shingle is `size` units in a row, hashed again; a text
with fewer units is one shingle of all it has, and one without any has no shingle. Units are

    mixed      what `text.lower().split()` gives in Python, over all of Unicode, but every letter of a script that is
               written without spaces is a word of its own (Chinese, Japanese, Thai, ...), and Tibetan is cut at its
               marks between syllables; without that a page in those languages is a handful of "words"
    word       the same, but for nothing but white space
    character  every character of `" ".join(text.lower().split())`

so that equal sets mean equal words, regardless of their case and spacing. With `strip_punctuation` punctuation and
symbols
separate words as spaces do. No lower-cased copy of a text is made. One departure from `str.lower`: a Greek sigma is the
same letter wherever it stands in a word, so that "ΟΔΟΣ" and "οδος" agree.

A signature is the minimum of each of `num_permutations` hash functions over a text's shingles (Broder, 1997); two texts
agree in any entry with probability J, their Jaccard similarity. A band is `rows` entries hashed together; texts that
agree in any of `bands` bands become candidates, which happens with probability 1 - (1 - J^rows)^bands (Indyk and
Motwani, 1998; Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3).

The hash functions are x -> (x ^ b_k) * a_k over 32-bit integers, odd a_k, x being the lower half of a shingle's hash,
which is well mixed already. 32 bits keep eight or sixteen lanes of a vector unit busy, and need no modulo by a prime;
the inner loop goes over the hash functions, eight shingles at a time.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.config.model import Strict
from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.units import Unit, character_table, hash_units, mix

_BASE = np.uint64(0xD1342543DE82EF95)


class Shingling(Strict):
    """How texts become sets of shingles."""

    unit: Unit = Field(default="mixed", description="what a shingle is made of: mixed, word or character")
    size: int = Field(default=5, ge=1, le=1000, description="units per shingle")
    strip_punctuation: bool = Field(default=False, description="treat punctuation and symbols as word separators")

    def table(self) -> NDArray[np.uint32]:
        """What the compiled loops know of characters."""
        return character_table(self.unit, self.strip_punctuation)


def shingle_hashes(
    text_bytes: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64], shingling: Shingling
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The shingles of some texts in order, repetitions included.

    Args:
        text_bytes: UTF-8 of all texts.
        offsets: `[n + 1]` borders of texts in it.
        rows: `[m]` the texts wanted.

    Returns:
        hashes `[shingles]` and the borders `[m + 1]` of texts among them.
    """
    room = max_units(int((offsets[rows + 1] - offsets[rows]).sum()), shingling.unit) + len(rows)
    out, borders = np.empty(room, np.uint64), np.zeros(len(rows) + 1, np.int64)  # untouched pages cost nothing
    characters = shingling.unit == "character"
    _hash_texts(text_bytes, offsets, rows, shingling.table(), characters, shingling.size, out, borders)
    return out[: borders[-1]], borders


def max_units(num_bytes: int, unit: Unit) -> int:
    """More units than a text of that many bytes can have: words take a byte and a space, lone letters three bytes."""
    return num_bytes + 2 if unit == "character" else num_bytes // 2 + 2


@compiled
def _hash_texts(
    text: Any, offsets: Any, rows: Any, table: Any, characters: bool, size: int, out: Any, borders: Any
) -> None:
    for k, row in enumerate(rows):
        room = out[borders[k] :]
        count = hash_shingles(text, offsets[row], offsets[row + 1], table, characters, size, room)
        borders[k + 1] = borders[k] + count


@compiled
def hash_shingles(text: Any, start: int, stop: int, table: Any, characters: bool, size: int, out: Any) -> int:
    """Write the shingle hashes of `text[start:stop]` to `out`, which has room for its units; return how many."""
    num_units = hash_units(text, start, stop, table, characters, out)
    if num_units == 0:
        return 0
    size = min(size, num_units)
    count = num_units - size + 1
    hashed, power = np.uint64(0), np.uint64(1)
    for j in range(size - 1):
        hashed = hashed * _BASE + out[j]
        power *= _BASE
    power *= _BASE
    left = np.uint64(0)
    for i in range(count):  # a rolling polynomial; in place: shingle i needs unit i and later ones only
        hashed = hashed * _BASE + (out[i + size - 1] - left * power)
        left = out[i]
        out[i] = mix(hashed)
    return count


SEED = 0x6D696E68617368
"""Of the hash functions: constant, so that any two signatures of equal length can be compared."""

_LANES = 16
"""The hash functions are filled up to a multiple of this, so that the vector loop leaves no rest."""

_AT_ONCE = 8
"""Shingles per round of the inner loop; they are filled up with repetitions."""


class Bands(NamedTuple):
    """How a signature is cut: `number` bands of `rows` entries."""

    number: int
    rows: int

    @property
    def num_permutations(self) -> int:
        return self.number * self.rows

    def probability(self, jaccard: float) -> float:
        """That two texts of this similarity become candidates."""
        return float(-np.expm1(self.number * np.log1p(-min(jaccard**self.rows, 1 - 1e-16))))


def best_bands(threshold: float, max_permutations: int, miss_weight: float) -> Bands:
    """The bands with the least weighted area of errors around a threshold.

    The areas are those of false candidates, the integral of `probability` below the threshold, weighing
    `1 - miss_weight`, and of misses, that of `1 - probability` above it, weighing `miss_weight`; the same criterion
    as of Zhu et al., "LSH Ensemble" (2016), which datasketch made common. It knows nothing of any data: similarities
    are taken to be spread evenly.
    """
    below, above = np.linspace(0, threshold, 513), np.linspace(threshold, 1, 513)
    best, least = Bands(1, 1), math.inf
    for rows in range(1, max_permutations + 1):
        for count in range(1, max_permutations // rows + 1):
            false = np.trapezoid(1 - (1 - below**rows) ** count, below)
            missed = np.trapezoid((1 - above**rows) ** count, above)
            area = (1 - miss_weight) * false + miss_weight * missed
            if area < least:
                best, least = Bands(count, rows), float(area)
    return best


def permutations(count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """(odd factors, masks), each `[count]`; the first of a longer list are a shorter one."""
    drawn = np.random.Generator(np.random.Philox(SEED)).integers(0, 1 << 32, (count, 2), np.uint64).astype(np.uint32)
    return drawn[:, 0] | np.uint32(1), drawn[:, 1].copy()


def signatures(
    text_bytes: NDArray[np.uint8], offsets: NDArray[np.int64], shingling: Shingling, num_permutations: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """MinHash signatures of texts.

    Returns:
        signatures `[n, num_permutations]` and the number of shingles `[n]` with repetitions. A text without shingles
        has a signature of ones that means nothing.
    """
    padded = -(-num_permutations // _LANES) * _LANES
    factors, masks = permutations(padded)
    out = np.full((len(offsets) - 1, padded), 0xFFFFFFFF, np.uint32)
    room = max_units(int(np.diff(offsets).max(initial=0)), shingling.unit)
    hashes, lower = np.empty(room, np.uint64), np.empty(room + _AT_ONCE, np.uint32)
    characters = shingling.unit == "character"
    counts = _signatures(
        text_bytes, offsets, shingling.table(), characters, shingling.size, factors, masks, hashes, lower, out
    )
    return out[:, :num_permutations], counts


@compiled
def _signatures(
    text: Any,
    offsets: Any,
    table: Any,
    characters: bool,
    size: int,
    factors: Any,
    masks: Any,
    hashes: Any,
    lower: Any,
    out: Any,
) -> Any:
    counts = np.zeros(len(out), np.int64)
    for row in range(len(out)):
        count = hash_shingles(text, offsets[row], offsets[row + 1], table, characters, size, hashes)
        counts[row] = count
        if count:
            for i in range(count):
                lower[i] = np.uint32(hashes[i] & np.uint64(0xFFFFFFFF))
            padded = (count + 7) // 8 * 8
            lower[count:padded] = lower[0]
            minima(lower[:padded], factors, masks, out[row])
    return counts


@compiled
def minima(x: Any, factors: Any, masks: Any, out: Any) -> None:
    """Lower `out[k]` to the minimum of `(x ^ masks[k]) * factors[k]` mod 2^32; `len(x)` is a multiple of eight."""
    for i in range(0, len(x), 8):
        a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
        e, f, g, h = x[i + 4], x[i + 5], x[i + 6], x[i + 7]
        for k in range(len(out)):
            p = min(_permute(a, k, factors, masks), _permute(b, k, factors, masks))
            q = min(_permute(c, k, factors, masks), _permute(d, k, factors, masks))
            r = min(_permute(e, k, factors, masks), _permute(f, k, factors, masks))
            s = min(_permute(g, k, factors, masks), _permute(h, k, factors, masks))
            out[k] = min(out[k], min(min(p, q), min(r, s)))


@compiled
def _permute(x: Any, k: int, factors: Any, masks: Any) -> Any:
    return np.uint32((x ^ masks[k]) * factors[k])


@compiled
def band_keys(signatures: Any, rows: int, out: Any) -> None:
    """`out [n, bands]` uint64: a hash of each band and of its place."""
    for row in range(out.shape[0]):
        for band in range(out.shape[1]):
            key = np.uint64(band + 1)
            for k in range(band * rows, (band + 1) * rows):
                key = mix(key ^ np.uint64(signatures[row, k])) + np.uint64(0x9E3779B97F4A7C15)
            out[row, band] = key
