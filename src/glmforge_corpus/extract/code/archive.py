"""The files of a repository: a directory, a tar archive (plain, gzip, Zstandard) or a zip archive.

Nothing is unpacked to the disk, links are not followed, and only files that are requested by name and size are read.
What comes before the damage of an archive is read.
"""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from glmforge.data.documents.compression import chunks_of
from glmforge.errors import DataError


class Member(NamedTuple):
    """A file of a repository.

    Attributes:
        path: relative to the repository, with "/".
        size: in bytes.
        data: its content; None if it was not requested.
    """

    path: str
    size: int
    data: bytes | None


Wants = Callable[[str, int], bool]
"""Whether the content of a file is requested, by its path and size."""


def read_members(path: Path, wants: Wants) -> Iterator[Member]:
    """The files of a repository, in no particular order.

    Raises:
        DataError: after what could be read: the archive is damaged.
    """
    if path.is_dir():
        yield from _directory(path, wants)
    else:
        yield from _zip(path, wants) if path.name.endswith(".zip") else _tar(path, wants)


def without_common_directory(members: list[Member]) -> list[Member]:
    """Paths without the directory that all of them are in, if there is one: archives of a revision have one that is
    named after it."""
    tops = {member.path.partition("/")[0] for member in members}
    if len(tops) != 1 or any("/" not in member.path for member in members):
        return members
    return [member._replace(path=member.path.partition("/")[2]) for member in members]


def _directory(root: Path, wants: Wants) -> Iterator[Member]:
    for directory, subdirectories, names in os.walk(root):
        subdirectories[:] = sorted(name for name in subdirectories if name not in (".git", ".hg", ".svn"))
        for name in sorted(names):
            path = Path(directory) / name
            if path.is_symlink() or not path.is_file():
                continue
            size = path.stat().st_size
            relative = path.relative_to(root).as_posix()
            yield Member(relative, size, path.read_bytes() if wants(relative, size) else None)


class _Stream(io.RawIOBase):
    """Chunks as a file to be read from beginning to end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _tar(path: Path, wants: Wants) -> Iterator[Member]:
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Stream(chunks_of(path)), 1 << 20), mode="r|") as archive:
            for entry in archive:
                if not entry.isfile():
                    continue
                name = str(PurePosixPath(entry.name))
                data = None
                if wants(name, entry.size):
                    file = archive.extractfile(entry)
                    data = file.read() if file else b""
                    if len(data) < entry.size:
                        raise DataError(f"{path}: '{name}' is truncated; download the archive again")
                yield Member(name, entry.size, data)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path}: not readable as an archive ({error}); is the file complete?") from error


def _zip(path: Path, wants: Wants) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if entry.is_dir() or (entry.external_attr >> 28) == 0xA:  # a symbolic link
                    continue
                name, data = str(PurePosixPath(entry.filename)), None
                if wants(name, entry.file_size):
                    with archive.open(entry) as file:
                        data = file.read(entry.file_size + 1)
                yield Member(name, entry.file_size, data)
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{path}: not readable as an archive ({error}); is the file complete?") from error
