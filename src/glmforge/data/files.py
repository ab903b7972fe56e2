"""Files that are whole or absent.

Everything that the data packages write goes to a name beside the final one, is flushed to the disk, and takes its
final name last. A run that is killed leaves a `.partial` file and never a short one under the name that
others read.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from glmforge.errors import DataError
from glmforge.runtime.place import CACHE_LOCK


def partial_path(path: Path) -> Path:
    """Where `path` is written until it is whole."""
    return path.with_name(path.name + ".partial")


def open_partial(path: Path, *, wait: bool = False) -> BinaryIO:
    """An empty file at `partial_path(path)` for this process alone, until it closes it; it is to `publish` it before.
    The directory is made if need be.

    Raises:
        DataError: another process writes it, and is not to be waited for; or it cannot be made.
    """
    partial = partial_path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if partial.exists() and os.path.samestat(partial.stat(), os.fstat(file.fileno())):
                    file.truncate(0)
                    return file
            except BlockingIOError:
                file.close()
                raise DataError(f"{path}: another process is writing it; wait, or choose another name") from None
            file.close()  # between opening and locking it, another process gave it its name


def write_partial(path: Path, data: bytes) -> None:
    """Put the contents of `path` on the disk, without the name. The directory is made if need be."""
    partial = partial_path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            _write_through(file, data)


def publish(path: Path) -> None:
    """Give what was flushed to `partial_path(path)` its final name, durably."""
    with disk_errors(path):
        partial_path(path).rename(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def discard_partial(path: Path) -> None:
    """Remove what was written of `path` and not published."""
    with suppress(FileNotFoundError, NotADirectoryError):
        partial_path(path).unlink()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of which no reader ever sees a part. Of several processes at once, the last one's stays.

    Raises:
        DataError: the disk is full, or the place cannot be written.
    """
    with disk_errors(path), open_partial(path, wait=True) as file:  # closing writes what is left
        try:
            _write_through(file, data)
            publish(path)
        finally:
            discard_partial(path)


def _write_through(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold the lock of `directory`, which is made if need be; waits for its holder."""
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / CACHE_LOCK).open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise unless `path` is free, or may be replaced."""
    with disk_errors(path):
        is_there = path.exists()
    if is_there and not overwrite:
        raise DataError(f"{path}: already exists; choose another name, or pass --force to overwrite it")


def refuse_unwritable(path: Path, overwrite: bool) -> None:
    """Raise unless a file of that name may be made or replaced: checked before hours of work, not after."""
    refuse_existing(path, overwrite)
    if path.is_dir():
        raise DataError(f"{path}: is a directory; pass a file name")
    place = next(parent for parent in path.absolute().parents if parent.exists())
    if not place.is_dir():
        raise DataError(f"{path}: cannot be written ({place} is a file); choose another path")
    if not os.access(place, os.W_OK | os.X_OK):
        raise DataError(f"{path}: cannot be written (no permission in {place}); choose another path")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses (disk full, no permission) into an error that names `path`."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "choose another path")
        raise DataError(f"{path}: cannot be written ({_refusal(error, path)}): {advice}") from error


_ADVICE = {
    errno.ENOSPC: "free some space or choose another path",
    errno.EDQUOT: "free some of your quota or choose another path",
    errno.EFBIG: "raise the file size limit (ulimit -f) or choose another path",
    errno.EMFILE: "raise the open file limit (ulimit -n)",
    errno.EACCES: "fix its permissions or choose another path",
    errno.EPERM: "fix its permissions or choose another path",
    errno.EROFS: "remount it writable or choose another path",
    errno.ENOENT: "a file or directory was removed meanwhile; make sure that nothing else writes there, and run again",
    errno.ENOTDIR: "a file is in the way of a directory; move it or choose another path",
    errno.EEXIST: "a file is in the way of a directory; move it or choose another path",
    errno.EISDIR: "a directory is in the way of a file; move it or choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "the disk or its network failed; choose another path",
}


def _refusal(error: OSError, path: Path) -> str:
    """What the operating system said, and of which file if that is not obvious from `path`."""
    said = error.strerror or str(error)
    name = str(error.filename or "")
    return said if not name or name.startswith(str(path)) else f"{name}: {said}"


def printable(name: str) -> str:
    """A file name, or what quotes one, as text: bytes that are no UTF-8, which Python keeps as half characters, stand
    there as `\\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def mapped(path: Path) -> memoryview:
    """The file's bytes, mapped read-only. An empty file, which cannot be mapped, is no bytes.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): make it readable, or copy it again") from error


@contextmanager
def arrow_input(path: Path) -> Iterator[Path | BinaryIO]:
    """What to give to pyarrow to read a file: it takes no name that is not UTF-8, but an open file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield file
    else:
        yield path
