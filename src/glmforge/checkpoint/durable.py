"""Force files and names to the disk: what a power failure may take away is only what was not."""

import os
from pathlib import Path


def fsync_file(file: Path) -> None:
    """Force the contents of a file that has been written to the disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


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
