"""How much each token of a shard is to be trained on: a file of loss weights beside its ids.

Of a conversation, a model learns what the assistant writes, and possibly one answer more than another. The weights lie
beside the ids, so that everything that draws rows from a shard (windows, packing, mixtures, resuming) draws them along.
`<prefix>.loss` is, little-endian:

    8 bytes       b"GLMFLOSS"
    uint32        version, 1, or 2 with sums
    uint32        number of distinct weights n, 1 to 256
    uint64        number of tokens T
    32 bytes      SHA-256 of the codes
    float32[256]  the distinct weights, zeros beyond n
    uint32        CRC-32 of all above
    uint8[T]      the codes: which of the weights each token of .bin has
    float32[D]    with version 2, of each document what the weights of its conversation's labels add up to
    uint32        and the CRC-32 of these

A conversation may be several documents (`glmforge.data.chat.encode`). Its sum is what makes it count as one, wherever
its documents are drawn.

A byte per token, regardless of the weights; conversations have few different ones. The file is mapped. Opening checks
header and size, reading checks the codes that are read; only `verify`, which reads all, finds a code that has changed
to another one.
"""

import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from glmforge.data.files import discard_partial, disk_errors, mapped, partial_path, publish
from glmforge.errors import DataError

MAX_WEIGHTS = 256
MIN_WEIGHT, MAX_WEIGHT = 1e-4, 1e4
"""Of tokens that are trained on. Others are a mistake: a larger weight would drown all other tokens of a batch, and in
one of much smaller ones dividing by their sum would overflow."""

_MAGIC, _PLAIN, _WITH_SUMS = b"GLMFLOSS", 1, 2
_HEADER = struct.Struct("<8sIIQ32s")
_CRC = struct.Struct("<I")
_TABLE_BYTES = 4 * MAX_WEIGHTS
_HEADER_BYTES = _HEADER.size + _TABLE_BYTES + _CRC.size
_WRITE_AGAIN = "write the shard again"


class LossWeights:
    """The loss weights of a shard of `num_tokens` tokens in `num_documents`, mapped.

    Attributes:
        path: the file.
        checksum: SHA-256 of the codes, which with the weights tells this file from others.
        is_mask: all weights are 0 or 1.
        any_trained: some weight is not 0.
        sums_D: float32, of each document what the weights of its conversation's labels add up to; None: each document
            is a conversation.

    Raises:
        DataError: the file is damaged, cut off or of another shard.
    """

    def __init__(self, path: Path, num_tokens: int, num_documents: int) -> None:
        self.path = path
        contents = mapped(path)
        header = bytes(contents[:_HEADER_BYTES])
        if len(header) < _HEADER_BYTES or header[: len(_MAGIC)] != _MAGIC:
            raise DataError(f"{path}: not a file of loss weights: {_WRITE_AGAIN}")
        _, version, num_weights, found_tokens, self._digest = _HEADER.unpack_from(header)
        if version not in (_PLAIN, _WITH_SUMS):
            raise DataError(
                f"{path}: loss weights of version {version} are not supported, expected {_WITH_SUMS}: {_WRITE_AGAIN}"
            )
        weights = np.frombuffer(header, "<f4", MAX_WEIGHTS, _HEADER.size)
        intact = header == _header(version, num_weights, found_tokens, self._digest, weights)
        if not (intact and 1 <= num_weights <= MAX_WEIGHTS and _are_weights(weights)):
            raise DataError(f"{path}: its header is damaged: {_WRITE_AGAIN}")
        sum_bytes = 4 * num_documents + _CRC.size if version == _WITH_SUMS else 0
        if found_tokens != num_tokens or len(contents) != _HEADER_BYTES + num_tokens + sum_bytes:
            num_found = len(contents) - _HEADER_BYTES - sum_bytes
            raise DataError(
                f"{path}: {num_found:,} weights for a shard of {num_tokens:,} tokens; they belong to different "
                f"shards, or are truncated: {_WRITE_AGAIN}"
            )
        self._weights = weights[:num_weights]
        self._codes = np.frombuffer(contents, np.uint8, num_tokens, _HEADER_BYTES)
        self.is_mask = bool(np.isin(self._weights, (0, 1)).all())
        self.any_trained = bool(self._weights.any())
        sums = np.frombuffer(contents, "<f4", num_documents, _HEADER_BYTES + num_tokens) if sum_bytes else None
        self.sums_D: NDArray[np.float32] | None = sums
        self._sums_crc = bytes(contents[-_CRC.size :])

    @property
    def checksum(self) -> str:
        """SHA-256 of weights and codes."""
        return _checksum(self._weights, self._digest)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Weights of tokens [start, stop), float32 [stop - start].

        Raises:
            DataError: the file holds a code that it has no weight for.
        """
        codes = self._codes[start:stop]
        if codes.size and int(codes.max()) >= len(self._weights):
            raise self._damaged()
        weights: NDArray[np.float32] = self._weights[codes]
        return weights

    def verify(self) -> None:
        """Read all and raise a DataError if a byte has changed."""
        if hashlib.sha256(self._codes.data).digest() != self._digest:
            raise self._damaged()
        if self.sums_D is not None and _CRC.pack(zlib.crc32(self.sums_D.tobytes())) != self._sums_crc:
            raise self._damaged()

    def _damaged(self) -> DataError:
        return DataError(f"{self.path}: damaged, its checksum does not match: {_WRITE_AGAIN}")


class LossWeightsWriter:
    """Collects weights under a temporary name. `publish` makes the file appear, `discard` removes what is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._codes: dict[float, int] = {}
        self._digest = hashlib.sha256()
        self._num_tokens = 0
        self._sums: list[NDArray[np.float32]] = []
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = partial_path(path).open("wb")
            self._file.write(bytes(_HEADER_BYTES))

    def add(self, weights: NDArray[Any], sums: NDArray[Any] | None = None) -> None:
        """Append the weights of some tokens; of their documents the conversations' sums, always or never.

        Raises:
            DataError: a weight is neither 0 nor from `MIN_WEIGHT` to `MAX_WEIGHT`, there are too many different ones,
                or the disk is full.
        """
        distinct, inverse = np.unique(weights.astype(np.float32), return_inverse=True)
        if not _are_weights(distinct):
            raise DataError(f"{self._path}: loss weights must be 0, or from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
        codes = [self._codes.setdefault(weight, len(self._codes)) for weight in distinct.tolist()]
        if len(self._codes) > MAX_WEIGHTS:
            raise DataError(
                f"{self._path}: more than {MAX_WEIGHTS} different loss weights: round them, to hundredths for instance"
            )
        data = np.array(codes, np.uint8)[inverse].tobytes()
        with disk_errors(self._path):
            self._file.write(data)
        self._digest.update(data)
        self._num_tokens += len(weights)
        if sums is not None:
            self._sums.append(sums.astype("<f4"))

    def finish(self) -> str:
        """Put all on the disk, without the name. Returns the file's checksum."""
        weights = np.zeros(MAX_WEIGHTS, np.float32)
        weights[: len(self._codes)] = list(self._codes)
        digest, version = self._digest.digest(), _WITH_SUMS if self._sums else _PLAIN
        with disk_errors(self._path):
            if self._sums:
                sums = np.concatenate(self._sums).tobytes()
                self._file.write(sums + _CRC.pack(zlib.crc32(sums)))
            self._file.seek(0)
            self._file.write(_header(version, len(self._codes), self._num_tokens, digest, weights))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return _checksum(weights[: len(self._codes)], digest)

    def publish(self) -> None:
        """Give what `finish` put on the disk its name."""
        publish(self._path)

    def discard(self) -> None:
        """Remove what was not published."""
        try:
            with disk_errors(self._path):
                self._file.close()
        finally:
            discard_partial(self._path)


def _header(version: int, num_weights: int, num_tokens: int, digest: bytes, weights: NDArray[np.float32]) -> bytes:
    fields = _HEADER.pack(_MAGIC, version, num_weights, num_tokens, digest) + weights.astype("<f4").tobytes()
    return fields + _CRC.pack(zlib.crc32(fields))


def _checksum(weights: NDArray[np.float32], digest: bytes) -> str:
    return hashlib.sha256(weights.astype("<f4").tobytes() + digest).hexdigest()


def _are_weights(weights: NDArray[np.float32]) -> bool:
    low, high = np.float32(MIN_WEIGHT), np.float32(MAX_WEIGHT)
    return bool(((weights == 0) | (weights >= low) & (weights <= high)).all())
