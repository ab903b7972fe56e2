"""How a best-fit packing lies on disk.

It depends on the shard and on S, tokens per row, alone; it is called `<shard>.pack-<S>-<identity>.idx` and is,
little-endian:

    256 bytes  header: `_HEADER`, its CRC-32, zeros
    int64[R+1] first piece of each of R rows, then P
    int64[P]   first token of each of P pieces, those of a row in the shard's order
    int32[P]   length of each piece

The rows that one piece fills come first. Opening checks the header and the size; only `verify`, which reads all
of it, finds a byte that has changed.
"""

import hashlib
import json
import mmap
import struct
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError
from glmforge.files import kind_of

HEADER_BYTES = 256
_MAGIC, _VERSION = b"GLMFPACK", 1
_HEADER = struct.Struct("<8sI16s32s8Q")
_CRC = struct.Struct("<I")
_BUILD_AGAIN = "delete it to rebuild it"


@dataclass(frozen=True)
class PackingCounts:
    """What a packing holds.

    Attributes:
        seq_len: S, tokens per row.
        num_rows: R.
        num_pieces: P, documents and the parts of documents that were cut.
        num_full_rows: rows of one piece.
        num_documents: of the shard, empty ones not counted.
        num_tokens: of the shard; each is in one row.
        num_cut: documents longer than S, which are cut.
        num_cut_by_truncation: documents that windows at a stride of S would cut.
    """

    seq_len: int
    num_rows: int
    num_pieces: int
    num_full_rows: int
    num_documents: int
    num_tokens: int
    num_cut: int
    num_cut_by_truncation: int

    @property
    def utilisation(self) -> float:
        """Share of the rows' places that hold a token of the shard."""
        return self.num_tokens / (self.num_rows * self.seq_len)

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return HEADER_BYTES + 8 * (self.num_rows + 1) + 12 * self.num_pieces


def packing_identity(shard: TokenShard, seq_len: int) -> bytes:
    """16 bytes that depend on what a packing depends on."""
    parts = {"version": _VERSION, "seq_len": seq_len, "documents": shard.num_documents, **shard.identity()}
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).digest()


def packing_path(shard: TokenShard, seq_len: int, identity: bytes, packing_dir: Path | None = None) -> Path:
    """Where the packing of `shard` is stored: in `packing_dir`, or beside the shard."""
    directory = shard.prefix.parent if packing_dir is None else packing_dir
    return directory / f"{shard.prefix.name}.pack-{seq_len}-{identity.hex()[:12]}.idx"


class PackingFile:
    """A stored packing, mapped.

    Attributes:
        path: the file.
        identity: of the shard and S that it was made for.
        counts: what it holds.
        offsets_R: int64 [R + 1], `starts_P`: int64 [P], `lengths_P`: int32 [P]: see the module's table.

    Raises:
        DataError: the file is missing, cut off or not a packing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        contents = _map(path)
        self.identity, self._checksum, self.counts = _read_header(path, bytes(contents[:HEADER_BYTES]))
        if len(contents) != self.counts.num_bytes:
            raise DataError(f"{path}: {len(contents):,} bytes instead of {self.counts.num_bytes:,}: {_BUILD_AGAIN}")
        self.offsets_R, self.starts_P, self.lengths_P = packing_arrays(np.frombuffer(contents, np.uint8), self.counts)
        self._contents = contents[HEADER_BYTES:]

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        """A reading process gets the name and maps the file itself."""
        return type(self), (self.path,)

    @classmethod
    def of(cls, path: Path, identity: bytes) -> Self:
        """The packing at `path`, which must have been made for `identity`."""
        packing = cls(path)
        if packing.identity != identity:
            raise DataError(f"{path}: belongs to another shard or seq_len: {_BUILD_AGAIN}")
        return packing

    def verify(self) -> None:
        """Read all of it and raise a DataError if a byte has changed."""
        if hashlib.sha256(self._contents).digest() != self._checksum:
            raise self.damaged()

    def damaged(self) -> DataError:
        """The error for a packing whose rows cannot be."""
        return DataError(f"{self.path}: damaged, its checksum does not match: {_BUILD_AGAIN}")


def packing_arrays(contents: NDArray[np.uint8], counts: PackingCounts) -> tuple[NDArray[Any], ...]:
    """The three arrays in the bytes of a whole file: offsets_R, starts_P, lengths_P; views."""
    sizes = (HEADER_BYTES, 8 * (counts.num_rows + 1), 8 * counts.num_pieces)
    _, offsets, starts, lengths = np.split(contents, np.cumsum(sizes))
    return offsets.view("<i8"), starts.view("<i8"), lengths.view("<i4")


def make_header(identity: bytes, checksum: bytes, counts: PackingCounts) -> bytes:
    """The first `HEADER_BYTES`; `checksum` is the SHA-256 of all that follows."""
    fields = _HEADER.pack(_MAGIC, _VERSION, identity, checksum, *asdict(counts).values())
    return (fields + _CRC.pack(zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0")


def _read_header(path: Path, header: bytes) -> tuple[bytes, bytes, PackingCounts]:
    if len(header) < HEADER_BYTES or header[: len(_MAGIC)] != _MAGIC:
        raise DataError(f"{path}: not a packing: {_BUILD_AGAIN}")
    _, version, identity, checksum, *numbers = _HEADER.unpack_from(header)
    if version != _VERSION:
        raise DataError(f"{path}: packing version {version} is not supported, expected {_VERSION}: {_BUILD_AGAIN}")
    if header != make_header(identity, checksum, counts := PackingCounts(*numbers)):
        raise DataError(f"{path}: its header is damaged: {_BUILD_AGAIN}")
    return identity, checksum, counts


def _map(path: Path) -> memoryview:
    try:
        if kind_of(path, error=DataError) != "file":
            raise DataError(f"{path}: no such file; it is built when a run needs it")
        with path.open("rb") as file:
            size = path.stat().st_size
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); make it readable, or set data.packing_dir"
        ) from error
