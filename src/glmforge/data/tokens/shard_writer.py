"""Write a token shard, whole or not at all.

Its files grow under temporary names and take their own when all is on the disk, the index last: a
reader that finds an index finds a shard. Only lengths are kept in memory, four bytes per document.
"""

import hashlib
import os
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from glmforge.data.files import (
    discard_partial,
    disk_errors,
    open_partial,
    publish,
    refuse_existing,
    write_partial,
)
from glmforge.data.tokens.loss_weights import LossWeightsWriter
from glmforge.data.tokens.shards import (
    HEADER,
    INTEGER_TYPES,
    MAGIC,
    VERSION,
    ShardInfo,
    check_ids,
    loss_path,
    shard_paths,
)
from glmforge.errors import DataError

UINT16_VOCAB_SIZE = 65_500
"""Below it, ids are stored in two bytes: Megatron's own limit."""

MAX_DOCUMENT_TOKENS = (1 << 31) - 1
"""The index has 32 bits for a length."""


def token_dtype_code(vocab_size: int) -> int:
    """The smallest dtype for ids of the vocabulary, as a key of `INTEGER_TYPES`."""
    return 8 if vocab_size < UINT16_VOCAB_SIZE else 4


class ShardWriter:
    """Context manager that collects documents and, on `finish`, makes a shard of them.

    Leaving the block without `finish`, by an error or otherwise, removes what was written.

    Args:
        prefix: path of the shard without suffix.
        vocab_size: of the tokenizer.
        overwrite: replace a shard of that name.
        weighted: every token comes with a loss weight.

    Raises:
        DataError: the shard exists and `overwrite` is False; an id is not of the vocabulary; a document is longer
            than the format can tell; the disk is full.
    """

    def __init__(self, prefix: str | Path, vocab_size: int, *, overwrite: bool = False, weighted: bool = False) -> None:
        self._prefix = Path(prefix)
        self._vocab_size = vocab_size
        self._bin_path, self._idx_path, self._json_path = shard_paths(prefix)
        self._paths = (self._bin_path, self._json_path, self._idx_path)  # in the order of publication
        self._loss_path, self._weighted = loss_path(prefix), weighted
        self._overwrite = overwrite
        self._refuse_existing()
        self._code = token_dtype_code(vocab_size)
        self._lengths = array("i")
        self._checksum = hashlib.sha256()
        self.num_tokens = 0
        self._file: BinaryIO
        self._loss: LossWeightsWriter | None = None

    def __enter__(self) -> Self:
        self._file = open_partial(self._bin_path)  # which keeps others from all files of the shard
        try:
            self._refuse_existing()  # what another process made meanwhile
            if self._weighted:
                self._loss = LossWeightsWriter(self._loss_path)
        except DataError:
            self._file.close()
            discard_partial(self._bin_path)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with disk_errors(self._bin_path):
                self._file.close()
        finally:
            for path in (*self._paths, self._loss_path):
                discard_partial(path)
            if self._loss is not None:
                self._loss.discard()

    @property
    def num_documents(self) -> int:
        return len(self._lengths)

    def add(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[Any],
        weights: NDArray[Any] | None = None,
        sums: NDArray[Any] | None = None,
    ) -> None:
        """Append documents: their ids end to end, the length of each, and in a weighted shard a weight per token.

        `sums` are those of the documents' conversations (`LossWeights.sums_D`), given always or never.
        """
        assert (weights is not None) == self._weighted, "only weighted shards have a weight for every token"
        assert int(lengths.sum()) == len(tokens), "lengths must add up to the tokens"
        if lengths.max(initial=0) > MAX_DOCUMENT_TOKENS:
            raise DataError(
                f"{self._prefix}: document {self.num_documents + int(lengths.argmax()):,} has {int(lengths.max()):,} "
                f"tokens, but at most {MAX_DOCUMENT_TOKENS:,} can be stored; split it"
            )
        check_ids(tokens, self._vocab_size, self._prefix, self.num_tokens)
        data = tokens.astype(INTEGER_TYPES[self._code]).tobytes()
        with disk_errors(self._bin_path):
            self._file.write(data)
        if self._loss is not None and weights is not None:
            assert len(weights) == len(tokens), "there must be a weight for each token"
            assert sums is None or len(sums) == len(lengths), "there must be a sum for each document"
            self._loss.add(weights, sums)
        self._checksum.update(data)
        self._lengths.extend(lengths.tolist())
        self.num_tokens += len(tokens)

    def finish(self, tokenizer_fingerprint: str, source: str, num_text_bytes: int) -> ShardInfo:
        """Make the shard appear under its name.

        Raises:
            DataError: no document was added, or the disk is full.
        """
        if not self._lengths:
            raise DataError(f"{self._prefix}: no documents to write ({source}); pass a corpus that contains text")
        info = ShardInfo(
            tokenizer_fingerprint=tokenizer_fingerprint,
            vocab_size=self._vocab_size,
            num_documents=self.num_documents,
            num_tokens=self.num_tokens,
            num_text_bytes=num_text_bytes,
            source=source,
            bin_sha256=self._checksum.hexdigest(),
            loss_sha256="" if self._loss is None else self._loss.finish(),
        )
        with disk_errors(self._bin_path):
            self._file.flush()
            os.fsync(self._file.fileno())
        write_partial(self._json_path, info.to_json().encode())
        write_partial(self._idx_path, self._index())
        self._idx_path.unlink(missing_ok=True)  # an old index must not meet a new .bin
        self._loss_path.unlink(missing_ok=True)
        if self._loss is not None:
            self._loss.publish()
        for path in self._paths:
            publish(path)
        return info

    def _refuse_existing(self) -> None:
        for path in (*self._paths, self._loss_path):
            refuse_existing(path, self._overwrite)

    def _index(self) -> bytes:
        lengths = np.frombuffer(self._lengths, np.int32)
        ends = np.cumsum(lengths, dtype=np.int64) * INTEGER_TYPES[self._code].itemsize
        pointers = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        borders = np.arange(len(lengths) + 1, dtype=np.int64)
        header = HEADER.pack(MAGIC, VERSION, self._code, len(lengths), len(borders))
        arrays = (lengths.astype("<i4"), pointers.astype("<i8"), borders.astype("<i8"))
        return b"".join([header, *(part.tobytes() for part in arrays)])
