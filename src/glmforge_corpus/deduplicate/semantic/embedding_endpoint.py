"""Embeddings from a server that speaks OpenAI's `/v1/embeddings` (vLLM, SGLang, llama.cpp, TEI, hosted ones).

A request that fails in a way that may pass (no connection, timeout, 408, 409, 429, 5xx) is sent again after 1, 2,
4 ... seconds, at most `MAX_WAIT`, or after what the server asks for; any other refusal ends the run with the server's
own words. What a finished task has got is kept; a task that was killed asks again for its shard.
"""

import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.semantic.embedder import EmbedderOptions, normalise

MAX_WAIT = 60.0
"""Seconds between two attempts, at most."""

_MAY_PASS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


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
        wait = self._first_wait
        for attempt in range(self._options.retries + 1):
            try:
                return self._once(texts)
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                asked_for = self._refused_for_good(error)
                if attempt == self._options.retries:
                    raise DataError(
                        f"{self._options.embedder}: no answer after {attempt + 1} attempts ({error}): is the server "
                        "up? Finished tasks are kept: run again"
                    ) from error
                time.sleep(min(MAX_WAIT, max(wait, asked_for)))
                wait *= 2
        raise AssertionError

    def _refused_for_good(self, error: Exception) -> float:
        """Seconds that the server asks to wait. Raises `DataError` where asking again is no use."""
        if not isinstance(error, urllib.error.HTTPError):
            return 0.0
        if error.code not in _MAY_PASS:
            said = error.read(500).decode(errors="replace").strip()
            raise DataError(f"{self._options.embedder}: refused with status {error.code}: {said}") from error
        try:
            return float(error.headers.get("Retry-After") or 0)
        except ValueError:  # a date
            return 0.0

    def _once(self, texts: list[str]) -> NDArray[np.float32]:
        headers = {"Content-Type": "application/json"}
        variable = self._options.api_key_variable
        if variable:
            if variable not in os.environ:
                raise DataError(f"api_key_variable: {variable} is not set in the environment: export it")
            headers["Authorization"] = f"Bearer {os.environ[variable]}"
        body = {"model": self._options.model, "input": texts, "encoding_format": "float"}
        request = urllib.request.Request(self._options.embedder, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=self._options.timeout) as answer:
            data = answer.read()
        return self._vectors(data, len(texts))

    def _vectors(self, data: bytes, count: int) -> NDArray[np.float32]:
        try:
            rows: list[Any] = sorted(json.loads(data)["data"], key=lambda row: row["index"])
            vectors = np.array([row["embedding"] for row in rows], np.float32)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self._options.embedder}: not an embeddings answer: {data[:200]!r}") from error
        if vectors.ndim != 2 or len(vectors) != count or not math.isfinite(float(vectors.sum())):
            raise DataError(f"{self._options.embedder}: {count} texts sent, vectors {vectors.shape} came back")
        return vectors
