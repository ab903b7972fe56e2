"""Copies of files from shared storage on a node's own disk.

The process that copies holds the lock of the directory (`glmforge.data.files.alone_in`): a second process, of this run
or another one, waits and then finds all there, and if the copying process dies, the lock goes to the next. A file takes
its name when it is whole, on the disk, as long as the original and of the checksum that is known of it; it then gets
the original's time of change, by which (with the length, as rsync does) a later run sees that the copy is still good.
So copying that was interrupted goes on with the files that are not there.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from glmforge.data.files import discard_partial, disk_errors, partial_path, publish
from glmforge.errors import DataError
from glmforge.runtime.waiting import map_in_threads

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 16 << 20
_NUM_THREADS = 4  # files copied at the same time


class Copy(NamedTuple):
    """A file, where its copy lies, and the SHA-256 that it must have, in hex, if that is known."""

    original: Path
    path: Path
    checksum: str | None


def copy_missing(
    files: Sequence[Copy],
    cache_dir: Path,
    *,
    setting: str,
    what: str,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Copy what has no good copy yet; the caller holds the lock of `cache_dir`.

    Args:
        files: what is to be there afterwards.
        cache_dir: above all copies.
        setting: the key that names `cache_dir`, for errors.
        what: is copied, in words.
        advance: called with the bytes copied and those to copy.

    Raises:
        DataError: an original is missing, there is too little space, or a copy differs from its original.
    """
    missing = [file for file in dict.fromkeys(files) if not _are_equal(file.original, file.path)]
    sizes = [file.original.stat().st_size for file in missing]
    _check_space(cache_dir, sum(sizes), setting, what)
    done = 0
    for size, _ in zip(sizes, map_in_threads(_copy, missing, _NUM_THREADS), strict=True):
        done += size
        advance(done, sum(sizes))


def _are_equal(original: Path, copy: Path) -> bool:
    """By length and time of change, to the second, as file systems round it differently."""
    if not original.is_file():
        raise DataError(f"{original}: missing; make it readable on this node")
    if not copy.is_file():
        return False
    first, second = original.stat(), copy.stat()
    return (first.st_size, int(first.st_mtime)) == (second.st_size, int(second.st_mtime))


def _check_space(cache_dir: Path, needed: int, setting: str, what: str) -> None:
    free = shutil.disk_usage(cache_dir).free
    if needed > free:
        raise DataError(
            f"{setting} {cache_dir}: {needed / 1e9:,.1f} GB of {what} are to be copied and {free / 1e9:,.1f} GB are "
            f"free; free some space, choose another disk, or set {setting.rpartition('.')[2]} to null"
        )


def _copy(file: Copy) -> None:
    logger.info("copying %s to %s", file.original, file.path)
    try:
        checksum = _write_copy(file.original, file.path)
        if file.checksum not in (None, checksum):
            raise DataError(f"{file.original}: is damaged: its checksum differs from the recorded one; create it again")
        publish(file.path)
    finally:
        discard_partial(file.path)


def _write_copy(original: Path, copy: Path) -> str:
    """Put the bytes on the disk under the partial name; returns the SHA-256 of what was read."""
    digest, status, partial = hashlib.sha256(), original.stat(), partial_path(copy)
    with disk_errors(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as target:
            for chunk in _chunks(original):
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        os.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))
    if partial.stat().st_size != status.st_size:
        raise DataError(f"{original}: changed while it was copied; retry when writing has finished")
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); make it readable") from error
