"""Embeddings from a server with OpenAI's `/v1/embeddings` (vLLM, SGLang, llama.cpp, TEI, hosted ones).

Failures that may pass are tried again (`glmforge.endpoint`); a refusal ends the run with the server's own words. What a
finished task has got is kept; a task that was killed asks again for its shard.
"""

import asyncio
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch
from glmforge.endpoint import Attempt, Endpoint, ask_again
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.embedder import EmbedderOptions, normalise


class EndpointEmbedder:
    """Asks a server. `first_wait` is the time before the second attempt, in seconds."""

    def __init__(self, options: EmbedderOptions, first_wait: float = 1.0) -> None:
        self._options, self._first_wait = options, first_wait
        self._dim = 0

    @property
    def dim(self) -> int:
        """Known by asking: the first use sends a word."""
        if not self._dim:
            self._dim = self._ask(["dimension"]).shape[1]
        return self._dim

    def embed(self, batch: DocumentBatch) -> NDArray[np.float32]:
        """`[n, dim]`."""
        vectors = np.zeros((len(batch), self.dim), np.float32)
        texts = [self._cut(text) for text in batch.texts]
        for start in range(0, len(texts), self._options.batch_size):
            part = self._ask(texts[start : start + self._options.batch_size])
            if part.shape[1] != self._dim:
                raise DataError(f"{self._options.embedder}: vectors of {part.shape[1]} numbers after {self._dim}")
            vectors[start : start + len(part)] = part
        return normalise(vectors)

    def _cut(self, text: str) -> str:
        return (self._options.prefix + text).encode()[: self._options.max_bytes].decode(errors="ignore")

    def _ask(self, texts: list[str]) -> NDArray[np.float32]:
        attempt = asyncio.run(
            self._attempts({"model": self._options.model, "input": texts, "encoding_format": "float"})
        )
        if attempt.outcome == "refused":
            raise DataError(f"{self._options.embedder}: refused with status {attempt.status}: {attempt.message}")
        if attempt.reply is None:
            said = f"{attempt.status or ''} {attempt.message}".strip()
            raise DataError(
                f"{self._options.embedder}: no answer after {self._options.retries + 1} attempts ({said}); is the "
                "server up? Run it again to resume"
            )
        return self._vectors(attempt.reply, len(texts))

    async def _attempts(self, payload: Mapping[str, Any]) -> Attempt:
        async with Endpoint(self._options.embedder, self._key(), self._options.timeout) as endpoint:
            num_attempts, url = self._options.retries + 1, self._options.embedder
            return await ask_again(lambda: endpoint.ask(payload), num_attempts, self._first_wait, url)

    def _key(self) -> str:
        variable = self._options.api_key_variable
        if variable and variable not in os.environ:
            raise DataError(f"api_key_variable: {variable} is not set in the environment; export it")
        return os.environ[variable] if variable else ""

    def _vectors(self, reply: Mapping[str, Any], count: int) -> NDArray[np.float32]:
        try:
            rows: list[Any] = sorted(reply["data"], key=lambda row: row["index"])
            vectors = np.array([row["embedding"] for row in rows], np.float32)
        except (ValueError, KeyError, TypeError) as error:
            said = repr(reply)[:200]
            raise DataError(f"{self._options.embedder}: not an embeddings response: {said}") from error
        if vectors.ndim != 2 or len(vectors) != count or not math.isfinite(float(vectors.sum())):
            raise DataError(
                f"{self._options.embedder}: {count} texts sent, but received vectors of shape {vectors.shape}"
            )
        return vectors
