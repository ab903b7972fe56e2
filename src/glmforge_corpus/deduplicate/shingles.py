"""Texts as sets of hashed shingles: what MinHash samples and what exact Jaccard similarity compares.

A text is first a sequence of *units*, each a 64-bit hash; a shingle is `size` units in a row, hashed again; a text
with fewer units is one shingle of all it has, and one without any has no shingle. Units are

    mixed      what `text.lower().split()` gives in Python, over all of Unicode, but every letter of a script that is
               written without spaces is a word of its own (Chinese, Japanese, Thai, ...), and Tibetan is cut at its
               marks between syllables; without that a page in those languages is a handful of "words". Texts in
               other scripts, and parts of a text, are not touched by it
    word       the same, but for nothing but white space
    character  every character of `" ".join(text.lower().split())`

so that equal sets mean equal words, whatever their case and spacing. With `strip_punctuation` punctuation and symbols
separate words as spaces do. No lower-cased copy of a text is ever made, and texts in any script take the same road.
One departure from `str.lower`: a Greek sigma is the same letter wherever it stands in a word, so that "ΟΔΟΣ" and
"οδος" agree.
"""

# mypy: disable-error-code="no-any-return"
# To type checkers, a compiled function may return anything.

from typing import Any

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
