"""What an embedder is, the settings of all of them, and the one that needs no model.

`LexicalEmbedder` sees words, not meaning: two texts are near where they use the same words in the same pairs, so it
finds reordered, shortened and edited copies, and no paraphrase. A text's features are its words and neighbouring word
pairs (`data/passages/normalised_words.py`: characters, in scripts without spaces), weighted by 1 + ln(count). Each is
projected to `PROJECTIONS` of `DIM` numbers with random signs taken from its hash: a sparse random projection
(Achlioptas 2003; feature hashing, Weinberger et al. 2009), which keeps cosines within about 1 / sqrt(DIM) = 0.05. There
is no inverse document frequency: that would need a pass over the corpus and make a document's vector depend on others.
"""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.config.model import Strict
from glmforge.data.compiled import compiled
from glmforge.data.documents.batch import DocumentBatch
from glmforge.data.passages.normalised_words import fold_table, next_word, ngram_key, roll
from glmforge.errors import DataError

LEXICAL = "lexical"


class Embedder(Protocol):
    """Maps documents to vectors. `dim` is their width."""

    @property
    def dim(self) -> int: ...

    def embed(self, batch: DocumentBatch) -> NDArray[np.float32]:
        """`[n, dim]`, each of length 1, or 0 where a text says nothing. Depends on the texts alone."""


class EmbedderOptions(Strict):
    """Which embedder, and how it is used."""

    embedder: str = Field(
        default=LEXICAL,
        min_length=1,
        description="'lexical' (shared words, no model), a directory of a sentence-transformers model, or the URL "
        "of an OpenAI-compatible embeddings endpoint such as http://host:8000/v1/embeddings",
    )
    batch_size: int = Field(default=64, ge=1, description="texts per forward pass or request")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="model directory: truncate texts to this many tokens (default: the model's limit)",
    )
    max_bytes: int = Field(
        default=16_384,
        ge=1,
        description="endpoint: truncate texts to this many bytes; servers refuse long ones",
    )
    prefix: str = Field(default="", description="prepended to every text, for models that expect one ('passage: ')")
    device: str = Field(default="cpu", description="model directory: device that it runs on: cpu, cuda")
    model: str = Field(default="", description="endpoint: name of the model")
    api_key_variable: str = Field(default="", description="endpoint: environment variable that holds its key")
    timeout: float = Field(default=60, gt=0, description="endpoint: seconds to wait for a reply")
    retries: int = Field(default=6, ge=0, description="endpoint: retries after a failure")

    @property
    def is_url(self) -> bool:
        return self.embedder.startswith(("http://", "https://"))

    @property
    def is_directory(self) -> bool:
        return not self.is_url and self.embedder != LEXICAL

    def check_settings(self) -> None:
        """Raises `DataError` for what cannot work on this machine."""
        if self.is_url and not self.model:
            raise DataError(f"embedder {self.embedder}: an endpoint needs a model name; set 'model'")
        if self.is_directory and not (Path(self.embedder) / "config.json").is_file():
            raise DataError(
                f"embedder {self.embedder}: no such model (no config.json); use 'lexical', the directory of a "
                "sentence-transformers model, or a http(s) URL"
            )


def normalise(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; rows of zeros stay."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


DIM = 384
PROJECTIONS = 4
"""Numbers that a feature goes to; more than one, so that no two frequent features fall together."""


class LexicalEmbedder:
    """Words and word pairs in common. See the module."""

    dim = DIM

    def embed(self, batch: DocumentBatch) -> NDArray[np.float32]:
        """`[n, DIM]`; zeros for a text without a word."""
        return normalise(_project(batch.text_bytes, batch.text_offsets, fold_table(), DIM))


@compiled
def _project(text, offsets, fold, dim):  # type: ignore[no-untyped-def]
    vectors = np.zeros((len(offsets) - 1, dim), np.float32)
    size = 1 << 12
    keys = np.zeros(size, np.uint64)  # 0: free
    counts = np.zeros(size, np.int32)
    used = np.empty(size, np.int64)
    nothing = np.uint64(0)
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        num_used = 0
        before = nothing
        while True:
            word, start, i, _ = next_word(text, i, end, fold)
            if start < 0:
                break
            num_used = _count(keys, counts, used, num_used, ngram_key(word))
            if before != 0:
                num_used = _count(keys, counts, used, num_used, ngram_key(roll(before, word, nothing, nothing)))
            before = word
            if 2 * num_used > len(keys) - 8:
                keys, counts, used = _double(keys, counts, used, num_used)
        for k in range(num_used):
            at = used[k]
            weight = np.float32(1.0 + np.log(counts[at]))
            bits = keys[at]
            for _ in range(PROJECTIONS):
                column = np.int64((bits >> np.uint64(1) & np.uint64(0x7FFF)) * np.uint64(dim) >> np.uint64(15))
                vectors[row, column] += weight if bits & np.uint64(1) else -weight
                bits >>= np.uint64(16)
            keys[at], counts[at] = 0, 0
    return vectors


@compiled
def _count(keys, counts, used, num_used, key):  # type: ignore[no-untyped-def]
    """Count a feature in the open-addressing table; how many slots are in use."""
    key |= np.uint64(1) << np.uint64(63)  # never 0; the bit belongs to the last projection's column
    mask = len(keys) - 1
    at = np.int64(key >> np.uint64(17) & np.uint64(mask))
    while keys[at] != 0 and keys[at] != key:
        at = (at + 1) & mask
    if keys[at] == 0:
        keys[at], used[num_used] = key, at
        num_used += 1
    counts[at] += 1
    return num_used


@compiled
def _double(keys, counts, used, num_used):  # type: ignore[no-untyped-def]
    size = 2 * len(keys)
    new_keys = np.zeros(size, np.uint64)
    new_counts = np.zeros(size, np.int32)
    new_used = np.empty(size, np.int64)
    for k in range(num_used):
        key = keys[used[k]]
        at = np.int64(key >> np.uint64(17) & np.uint64(size - 1))
        while new_keys[at] != 0:
            at = (at + 1) & (size - 1)
        new_keys[at], new_counts[at], new_used[k] = key, counts[used[k]], at
    return new_keys, new_counts, new_used
