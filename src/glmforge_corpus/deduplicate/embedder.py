"""What an embedder is, and the settings of all of them."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.config.model import Strict
from glmforge.data.documents.batch import DocumentBatch
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
        description="'lexical' (words in common, no model), a directory of a sentence-transformers model, or the URL "
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
            raise DataError(f"embedder {self.embedder}: an endpoint needs a model name: give 'model'")
        if self.is_directory and not (Path(self.embedder) / "config.json").is_file():
            raise DataError(
                f"embedder {self.embedder}: no such model (no config.json there): give 'lexical', the directory of a "
                "sentence-transformers model, or a http(s) URL"
            )


def normalise(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; rows of zeros stay."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
