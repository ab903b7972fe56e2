"""Bytes of a file that may be compressed, and what is left of one that is damaged.

The chunks of a file come as long as they can be read; a `DataError` follows what comes before the damage. The
standard library's gzip reader and zstandard's stream reader do not do that: the first loses what it has read when it
meets the damage, the second takes a file that was cut off for a whole one. Memory is bounded no matter what a file
expands
to: a chunk has a mebibyte at most. zstandard's decompressor, which reports truncation, sets no bound on its output;
so it is fed one block of the format (RFC 8878) at a time, which expands to 128 KiB at most.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from glmforge.errors import DataError
from glmforge.extras import needed_for

CHUNK_BYTES = 1 << 20
_GZIP_INPUT_BYTES = 64 << 10
_ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its name ends in .gz, .tgz or .zst.

    Raises:
        DataError: after all that could be read: the rest is damaged or missing.
        MissingPackageError: .zst without zstandard.
    """
    try:
        with path.open("rb") as file:
            if path.name.endswith((".gz", ".tgz")):
                yield from _gunzip(file, path)
            elif path.name.endswith(".zst"):
                yield from _decompress_zstandard(file, path)
            else:
                yield from _raw(file, CHUNK_BYTES)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({error}); is the file complete and readable?") from error


def stem(name: str) -> str:
    """A file's name without the suffix of a compression."""
    return name.removesuffix(".gz").removesuffix(".zst")


def _raw(file: BinaryIO, size: int) -> Iterator[bytes]:
    return iter(lambda: file.read(size), b"")


def _gunzip(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """All members of a gzip file; zero bytes between and after them are padding."""
    member, fresh = zlib.decompressobj(31), True
    for chunk in _raw(file, _GZIP_INPUT_BYTES):
        rest = chunk
        while rest:
            if fresh:
                rest = rest.lstrip(b"\0")
                if rest and not _GZIP_MAGIC.startswith(rest[:2]):
                    raise gzip.BadGzipFile(f"Not a gzipped file ({rest[:2]!r})")
            before = member.copy()
            try:
                data = member.decompress(rest, CHUNK_BYTES)
            except zlib.error as error:
                yield _up_to_damage(before, rest)
                raise DataError(f"{path}: cannot be read ({error}); is the file complete and readable?") from error
            fresh = fresh and not rest
            yield data
            rest = member.unconsumed_tail
            if member.eof:
                rest, member, fresh = member.unused_data, zlib.decompressobj(31), True
    if not fresh:
        yield member.flush()
        raise DataError(f"{path}: cannot be read (ends in the middle of a gzip member); download it again")


def _up_to_damage(member: "zlib._Decompress", data: bytes) -> bytes:
    """What of `data` can be unpacked: fed byte by byte, since a call that meets damage gives nothing."""
    parts = []
    try:
        for place in range(len(data)):
            parts.append(member.decompress(data[place : place + 1]))
    except zlib.error:
        pass
    return b"".join(parts)


def _decompress_zstandard(file: BinaryIO, path: Path) -> Iterator[bytes]:
    with needed_for(f"{path}:"):
        import zstandard
    frame = None
    try:
        for piece in _zstandard_blocks(file):
            rest = piece
            while rest:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(rest)
                rest = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise DataError(f"{path}: not readable as Zstandard ({error}); is the file complete?") from error
    if frame is not None:
        raise DataError(f"{path}: ends in the middle of a Zstandard frame; the copy is truncated; download it again")


def _zstandard_blocks(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of Zstandard frames in pieces that hold at most one block each; other bytes as they come."""
    while magic := file.read(4):
        if len(magic) == 4 and 0x184D2A50 <= int.from_bytes(magic, "little") < 0x184D2A60:  # a frame to be skipped
            file.seek(int.from_bytes(file.read(4), "little"), 1)
            continue
        descriptor = file.read(1)
        if magic != _ZSTANDARD_MAGIC or not descriptor:
            yield magic + descriptor + file.read(CHUNK_BYTES)
            return
        flags = descriptor[0]
        single = flags >> 5 & 1
        size = (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
        yield magic + descriptor + file.read(size)
        last = 0
        while not last:
            header = file.read(3)
            if len(header) < 3:
                yield header
                return
            value = int.from_bytes(header, "little")
            last, repeated = value & 1, (value >> 1 & 3) == 1
            yield header + file.read(1 if repeated else value >> 3)
        yield file.read(4 * (flags >> 2 & 1))
