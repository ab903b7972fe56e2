"""Force files and names to the disk: what a power failure may take away is only what was not."""

import os
from contextlib import suppress
from pathlib import Path


def fsync_file(file: Path) -> None:
    """Force the contents of a file that has been written to the disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def drop_from_memory(file: Path) -> None:
    """Ask the system to forget its copy in memory of a file that is on the disk, so that reading it reads the disk.

    Only a request: a file system in memory has nothing else, and some network file systems take no such advice.
    """
    with file.open("rb") as stream, suppress(OSError):
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fsync_directory(path: Path) -> None:
    """Force the names in a directory to the disk: after a power failure, a rename may otherwise be undone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(file: Path, text: str) -> None:
    """Write a text file, ending in a newline, and force its contents to the disk."""
    file.write_text(text + "\n", encoding="utf-8")
    fsync_file(file)
