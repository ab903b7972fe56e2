"""Files that are whole or absent.

Everything the data rooms write goes to a name beside the final one, is flushed to the disk, and takes its
final name last. A run that is killed leaves a `.partial` file and never a short one under the name that
others read.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glmforge.errors import DataError


def partial_path(path: Path) -> Path:
    """Where `path` is written until it is whole."""
    return path.with_name(path.name + ".partial")


def write_partial(path: Path, data: bytes) -> None:
    """Put the contents of `path` on the disk, without the name. The directory is made if need be."""
    partial = partial_path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


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
    partial_path(path).unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of which no reader ever sees a part."""
    try:
        write_partial(path, data)
        publish(path)
    finally:
        discard_partial(path)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise unless `path` is free, or may be replaced."""
    if path.exists() and not overwrite:
        raise DataError(f"{path}: exists already: choose another name, or replace it with --force")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses (disk full, no permission) into an error that names `path`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}): free space or choose another place"
        ) from error
