"""Token shards: the documents of a corpus as one long array of ids on disk, read through a memory map.

The layout is Megatron's IndexedDataset, so Megatron-LM and the stacks built on it read our shards and we read
theirs. `<prefix>.bin` is the ids of all sequences, back to back. `<prefix>.idx` is, little-endian:

    9 bytes   b"MMIDIDX\\0\\0"
    uint64    version, 1
    uint8     dtype code of the ids (uint16 is 8, int32 is 4)
    uint64    number of sequences n
    uint64    number of document borders m (documents + 1)
    int32[n]  length of each sequence in tokens
    int64[n]  byte offset of each sequence in .bin
    int64[m]  index of each document's first sequence, then n

In our shards a sequence is a document and ends with `<|endoftext|>`; elsewhere a document may have several.
`<prefix>.json` is ours: which tokenizer wrote the shard, counts, and a checksum. Other stacks ignore it; a
shard without it can be read, and is then checked by looking at its ids. `<prefix>.loss` is ours, too: where not
every token is to be trained on, how much each is (`glmforge.data.tokens.loss_weights`). The description tells whether
it belongs to the shard, so that a copy that lost it is refused instead of being trained on in full.

Nothing is read before it is requested, and nothing is copied: a shard of any size costs no memory. The index
is searched by bisection in the map itself, because its int64 arrays lie unaligned and numpy's searchsorted
would copy all of them at every call.

What the index says is not believed. Opening checks the header, the sizes and both ends of each array; a shard of a
billion documents has an index of 20 GB, which is not read for that. An entry that is used is checked then, against
the size of the shard and its neighbours, for a comparison each: what is out of range or out of order is an error that
names the file. Only `verify`, which reads all, finds an entry that is wrong and yet possible.
"""

import hashlib
import json
import struct
from bisect import bisect_left, bisect_right
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from glmforge.data.files import mapped
from glmforge.data.tokens.loss_weights import LossWeights
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.files import kind_of, read_json, shown

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
INTEGER_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("uint8"),
    2: np.dtype("int8"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""Dtype code -> type of the ids. Megatron also has codes for floats, which IDs never use."""

_WRITE_AGAIN = "write the shard again with 'glmforge data tokenize'"
_VERIFY_CHUNK_TOKENS = 1 << 24


@dataclass(frozen=True)
class ShardInfo:
    """What a shard holds and where it came from: the contents of `<prefix>.json`.

    Attributes:
        tokenizer_fingerprint: SHA-256 of the tokenizer.json that encoded it.
        vocab_size: number of ids of that tokenizer.
        num_documents: documents.
        num_tokens: tokens, the documents' final `<|endoftext|>` included.
        num_text_bytes: UTF-8 bytes of the text that was encoded.
        source: where the text came from, for people.
        bin_sha256: SHA-256 of the .bin file.
        loss_sha256: checksum of the .loss file; empty where all tokens are to be trained on and there is none.
    """

    tokenizer_fingerprint: str
    vocab_size: int
    num_documents: int
    num_tokens: int
    num_text_bytes: int
    source: str
    bin_sha256: str
    loss_sha256: str = ""

    @property
    def bytes_per_token(self) -> float:
        return self.num_text_bytes / self.num_tokens

    def to_json(self) -> str:
        content = {name: value for name, value in asdict(self).items() if name != "loss_sha256" or value}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises `DataError`: not such a description, by any field."""
        content = read_json(path, dict, error=DataError)
        kinds = {field.name: int if field.type is int else str for field in fields(cls)}
        required = [field.name for field in fields(cls) if field.default is MISSING]
        for name in dict.fromkeys([*required, *content]):
            value = content.get(name)
            if name not in kinds or type(value) is not kinds[name] or (isinstance(value, int) and value < 0):
                problem = f"{shown(name)} is {shown(repr(value)[:100])}" if name in content else f"{name} is missing"
                raise DataError(f"{path}: not a token shard description ({problem}): {_WRITE_AGAIN}")
        return cls(**content)


def shard_paths(prefix: str | Path) -> tuple[Path, Path, Path]:
    """The (.bin, .idx, .json) files of a shard. A dot in the prefix is part of the name."""
    bin_path, idx_path, json_path = (Path(f"{prefix}{suffix}") for suffix in (".bin", ".idx", ".json"))
    return bin_path, idx_path, json_path


def loss_path(prefix: str | Path) -> Path:
    """The .loss file of a shard."""
    return Path(f"{prefix}.loss")


class TokenShard:
    """A memory-mapped token shard.

    Attributes:
        prefix: path of its files without their suffix.
        info: its description, None for a shard that another program wrote.
        num_tokens: tokens of all documents.
        num_documents: documents.
        loss: how much each token is to be trained on; None where all are alike.

    Raises (on opening):
        DataError: a file is missing, cut off or of another format. `verify` finds what only a full read can.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = Path(prefix)
        self._bin_path, self._idx_path, json_path = shard_paths(prefix)
        self._check_existence()
        self.info = ShardInfo.load(json_path) if kind_of(json_path, error=DataError) is not None else None
        index = mapped(self._idx_path)
        dtype, num_sequences, num_borders = self._read_header(index)
        self._lengths = np.frombuffer(index, "<i4", num_sequences, HEADER.size)
        self._pointers = np.frombuffer(index, "<i8", num_sequences, HEADER.size + 4 * num_sequences)
        self._borders = np.frombuffer(index, "<i8", num_borders, HEADER.size + 12 * num_sequences)
        self._check_sizes(dtype)
        self._tokens = np.frombuffer(mapped(self._bin_path), dtype)
        self.num_tokens = len(self._tokens)
        self.num_documents = num_borders - 1
        if self.num_tokens == 0:
            raise DataError(f"{self.prefix}: contains no tokens: {_WRITE_AGAIN}")
        self.loss = self._open_loss()

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        """A reading process gets the name and maps the files itself."""
        return type(self), (self.prefix,)

    def tokens(self, start: int, stop: int) -> NDArray[Any]:
        """Ids [start, stop) of the documents laid end to end; a view, [stop - start]."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"{self.prefix}: tokens [{start}, {stop}) of {self.num_tokens}")
        return self._tokens[start:stop]

    def document(self, index: int) -> NDArray[Any]:
        """Ids of one document; a view."""
        return self.tokens(*self.document_range(index))

    def document_range(self, index: int) -> tuple[int, int]:
        """Tokens [start, stop) of one document."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"{self.prefix}: document {index} of {self.num_documents}")
        start, stop = self._document_start(index), self._document_start(index + 1)
        if not 0 <= start <= stop <= self.num_tokens:
            raise self._damaged_index()
        return start, stop

    def document_at(self, token: int) -> int:
        """Index of the document that token `token` of all documents belongs to."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"{self.prefix}: token {token} of {self.num_tokens}")
        sequence = bisect_right(self._pointers, token * self._tokens.itemsize) - 1
        document = bisect_right(self._borders, sequence) - 1
        self._check_sequences(max(sequence, 0), sequence + 1)
        if not (sequence >= 0 and 0 <= document < self.num_documents and self._is_inside(token, document)):
            raise self._damaged_index()
        return document

    def document_lengths(self, start: int, stop: int) -> NDArray[np.int64]:
        """Lengths of the pieces into which document borders cut tokens [start, stop); they fill it."""
        itemsize = self._tokens.itemsize
        first = bisect_right(self._pointers, start * itemsize)  # sequences that begin inside (start, stop)
        last = bisect_left(self._pointers, stop * itemsize, lo=first)
        self._check_sequences(max(first - 1, 0), last)
        low, high = bisect_left(self._borders, first), bisect_left(self._borders, last)
        around = self._borders[max(low - 1, 0) : high + 1]
        if around[0] < 0 or (np.diff(around) < 0).any():
            raise self._damaged_index()
        documents = self._borders[low:high]
        if len(documents) and not 0 <= documents.min() <= documents.max() < len(self._pointers):
            raise self._damaged_index()
        inner, beside = np.divmod(self._pointers[documents], itemsize)
        lengths: NDArray[np.int64] = np.diff(inner, prepend=start, append=stop)
        if beside.any() or (lengths < 0).any():
            raise self._damaged_index()
        return lengths[lengths > 0]  # a shard from elsewhere may hold empty documents

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise unless `tokenizer` wrote the shard or, where no description says who did, has all its ids."""
        if self.info is None:
            self._check_ids(tokenizer.vocab_size)
        elif self.info.tokenizer_fingerprint != tokenizer.fingerprint:
            raise DataError(
                f"{self.prefix}: written by another tokenizer ({self.info.vocab_size:,} ids, fingerprint "
                f"{self.info.tokenizer_fingerprint[:12]}) than the one given ({tokenizer.vocab_size:,} ids, "
                f"{tokenizer.fingerprint[:12]}): use the shard's own tokenizer, or {_WRITE_AGAIN}"
            )

    def verify(self) -> None:
        """Read the whole shard and raise a DataError if anything in it is damaged."""
        self._verify_index()
        if self.info is not None:
            with self._bin_path.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
            if checksum != self.info.bin_sha256:
                raise DataError(f"{self._bin_path}: its checksum does not match its .json: {_WRITE_AGAIN}")
            self._check_ids(self.info.vocab_size)
        if self.loss is not None:
            self.loss.verify()

    def identity(self) -> dict[str, int | str]:
        """What tells this shard from others: size and checksums (of the index, without a description)."""
        loss = {} if self.loss is None else {"loss_sha256": self.loss.checksum}
        if self.info is not None:
            return {"num_tokens": self.num_tokens, "sha256": self.info.bin_sha256, **loss}
        with self._idx_path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return {"num_tokens": self.num_tokens, "idx_sha256": checksum, **loss}

    def _open_loss(self) -> LossWeights | None:
        path = loss_path(self.prefix)
        expected = None if self.info is None else self.info.loss_sha256
        if kind_of(path, error=DataError) is None:
            if expected:
                raise DataError(f"{path}: missing, and without it all tokens would be trained on; copy it too")
            return None
        loss = LossWeights(path, self.num_tokens, self.num_documents)
        if expected is not None and loss.checksum != expected:
            raise DataError(
                f"{path}: belongs to another shard, by the checksum in its .json; remove it, or {_WRITE_AGAIN}"
            )
        return loss

    def _document_start(self, index: int) -> int:
        sequence = int(self._borders[index])
        if sequence == len(self._pointers):
            return self.num_tokens
        if not 0 <= sequence < len(self._pointers):
            raise self._damaged_index()
        start, beside = divmod(int(self._pointers[sequence]), self._tokens.itemsize)
        if beside or not 0 <= start <= self.num_tokens:
            raise self._damaged_index()
        return start

    def _check_sequences(self, first: int, last: int) -> None:
        """Raise unless the sequences [first, last) lie back to back, up to the next one or the end."""
        pointers = self._pointers[first : last + 1]
        ends = pointers[: last - first] + self._lengths[first:last].astype(np.int64) * self._tokens.itemsize
        behind = [] if last < len(self._pointers) else [self.num_tokens * self._tokens.itemsize]
        following = np.append(pointers[1:], behind)
        if (ends != following).any() or (pointers < 0).any():
            raise self._damaged_index()

    def _is_inside(self, token: int, document: int) -> bool:
        return self._document_start(document) <= token < self._document_start(document + 1)

    def _damaged_index(self) -> DataError:
        return DataError(f"{self._idx_path}: sequences are not contiguous, it is damaged: {_WRITE_AGAIN}")

    def _verify_index(self) -> None:
        """In blocks, for the index may be larger than memory."""
        end = last_border = 0
        for start in range(0, len(self._lengths), _VERIFY_CHUNK_TOKENS):
            lengths = self._lengths[start : start + _VERIFY_CHUNK_TOKENS].astype(np.int64)
            ends = end + np.cumsum(lengths) * self._tokens.itemsize
            pointers = self._pointers[start : start + _VERIFY_CHUNK_TOKENS]
            if (lengths < 0).any() or pointers[0] != end or (pointers[1:] != ends[:-1]).any():
                raise self._damaged_index()
            end = int(ends[-1])
        for start in range(0, len(self._borders), _VERIFY_CHUNK_TOKENS):
            borders = np.diff(self._borders[start : start + _VERIFY_CHUNK_TOKENS], prepend=last_border)
            if (borders < 0).any():
                raise self._damaged_index()
            last_border += int(borders.sum())

    def _check_existence(self) -> None:
        missing = [path for path in (self._bin_path, self._idx_path) if not path.is_file()]
        if len(missing) == 2:
            raise DataError(f"{self.prefix}: no token shard (.bin and .idx); create it with 'glmforge data tokenize'")
        if missing:
            raise DataError(f"{missing[0]}: missing, a shard needs both .bin and .idx; copy it too, or {_WRITE_AGAIN}")

    def _read_header(self, index: memoryview) -> tuple[np.dtype[Any], int, int]:
        if len(index) < HEADER.size or bytes(index[: len(MAGIC)]) != MAGIC:
            raise DataError(f"{self._idx_path}: not a token shard index; pass the prefix of a .bin and .idx file")
        _, version, code, num_sequences, num_borders = HEADER.unpack_from(index)
        if version != VERSION or code not in INTEGER_TYPES:
            raise DataError(
                f"{self._idx_path}: index version {version} with dtype code {code}; supported are version {VERSION} "
                f"with codes {sorted(INTEGER_TYPES)}: {_WRITE_AGAIN}"
            )
        self._check_size(self._idx_path, len(index), HEADER.size + 12 * num_sequences + 8 * num_borders)
        if num_sequences == 0 or num_borders < 2:
            raise DataError(f"{self.prefix}: contains no documents: {_WRITE_AGAIN}")
        return INTEGER_TYPES[code], num_sequences, num_borders

    def _check_sizes(self, dtype: np.dtype[Any]) -> None:
        if self._pointers[0] != 0 or self._lengths[-1] < 0 or self._pointers[-1] < 0:
            raise self._damaged_index()
        if self._borders[0] != 0 or self._borders[-1] != len(self._lengths):
            raise DataError(f"{self._idx_path}: its documents do not cover its sequences: {_WRITE_AGAIN}")
        num_bytes = int(self._pointers[-1]) + int(self._lengths[-1]) * dtype.itemsize
        self._check_size(self._bin_path, self._bin_path.stat().st_size, num_bytes)
        if self.info is not None and self.info.num_tokens * dtype.itemsize != num_bytes:
            raise DataError(
                f"{self.prefix}: .json says {self.info.num_tokens:,} tokens, .idx says "
                f"{num_bytes // dtype.itemsize:,}; they belong to different shards: {_WRITE_AGAIN}"
            )

    def _check_size(self, path: Path, size: int, expected: int) -> None:
        if size < expected:
            raise DataError(
                f"{path}: {expected - size:,} bytes shorter than the index says; the copy is truncated; copy it "
                f"again, or {_WRITE_AGAIN}"
            )
        if size > expected:
            raise DataError(
                f"{path}: {size - expected:,} bytes longer than the index says; .bin and .idx belong to different "
                f"shards: {_WRITE_AGAIN}"
            )

    def _check_ids(self, vocab_size: int) -> None:
        for start in range(0, self.num_tokens, _VERIFY_CHUNK_TOKENS):
            chunk = self._tokens[start : start + _VERIFY_CHUNK_TOKENS]
            check_ids(chunk, vocab_size, self.prefix, start)


def check_ids(tokens: NDArray[Any], vocab_size: int, prefix: Path, start: int = 0) -> None:
    """Raise a DataError if one of `tokens`, the first of which is token `start` of the shard, is no id."""
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        position = int(np.flatnonzero((tokens < 0) | (tokens >= vocab_size))[0])
        raise DataError(
            f"{prefix}: token {start + position:,} is id {int(tokens[position]):,}, outside the vocabulary "
            f"of {vocab_size:,}: use the tokenizer that wrote the shard, or {_WRITE_AGAIN}"
        )
