"""`manifest.json`: size and SHA-256 of every file of a checkpoint; what makes a directory a complete checkpoint.

The manifest is the last file written before a checkpoint gets its name, so a directory with a manifest whose
sizes agree was once complete. Sizes are checked whenever a checkpoint is looked for (they find cut-off copies
for the price of a `stat`); checksums when it is loaded or verified (they find everything else, for the price
of reading).

SHA-256 rather than a faster CRC: it is in every shell (`sha256sum`), and the processors of today compute it
faster than most disks read. `hashlib` lets go of the interpreter lock, so a few threads hash several files at
once.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, NonNegativeInt, ValidationError
from pydantic_core import PydanticCustomError

from glmforge.checkpoint.format.wording import describe_invalid, list_some
from glmforge.config.model import Strict
from glmforge.errors import CheckpointError
from glmforge.files import read_bytes, shown
from glmforge.runtime.durable import drop_from_memory, fsync_file, write_durably
from glmforge.runtime.waiting import map_in_threads

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1

_MAX_THREADS = 8
_MAX_BYTES = 64 << 20  # 400,000 files


class FileRecord(Strict):
    """Size in bytes and hexadecimal SHA-256 of one file."""

    size: NonNegativeInt
    sha256: str


def _check_plain(name: str) -> str:
    if PurePosixPath(name).name != name or name == ".." or not name.isprintable():
        raise PydanticCustomError("name", "a name that is not a file in the directory")
    return name


FileName = Annotated[str, AfterValidator(_check_plain)]
"""Of a file in the checkpoint's own directory: a list from outside must not lead anywhere else."""


class Manifest(Strict):
    """File name -> record, of every file of the checkpoint but the manifest itself."""

    format_version: int = FORMAT_VERSION
    files: dict[FileName, FileRecord]


def record_file(file: Path) -> FileRecord:
    """Force `file` to the disk, then read it back for its record."""
    fsync_file(file)
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileRecord(size=stream.tell(), sha256=digest)


def check_written(path: Path, files: Mapping[str, FileRecord], said_by: str) -> None:
    """Read `files` of the directory `path` back from the disk; raises `CheckpointError` if they are not as recorded."""
    for name in files:
        drop_from_memory(path / name)
    if problems := find_file_problems(path, files, said_by, checksums=True):
        raise CheckpointError(f"the data on disk differs from what was written: {summarize_problems(problems)}")


def write_manifest(path: Path, files: Mapping[str, FileRecord]) -> None:
    """Write the manifest of the checkpoint directory `path` and force it to the disk."""
    manifest = Manifest(files=dict(sorted(files.items())))
    write_durably(path / MANIFEST_FILE, manifest.model_dump_json(indent=1))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint directory `path`. Raises `CheckpointError` if missing or damaged."""
    file = path / MANIFEST_FILE
    if not file.exists():
        raise CheckpointError(f"{file}: missing; {path} is not a checkpoint, or is incomplete")
    content = read_bytes(file, error=CheckpointError, max_bytes=_MAX_BYTES)
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointError(f"{file}: is not a manifest ({describe_invalid(error)[1]}); it is damaged") from error
    if manifest.format_version != FORMAT_VERSION:
        raise CheckpointError(
            f"{file}: format {shown(manifest.format_version)}, but this glmforge reads {FORMAT_VERSION}; use a newer "
            f"glmforge"
        )
    return manifest


def find_problems(path: Path, *, checksums: bool, part: int = 0, num_parts: int = 1) -> list[str]:
    """What is wrong with the checkpoint directory `path`, one line per file; empty if it is whole.

    `part` of `num_parts` checks only its share of the files: ranks divide the reading among them.
    """
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return [str(error)]
    by_size = sorted(manifest.files, key=lambda name: (-manifest.files[name].size, name))
    share = {name: manifest.files[name] for name in by_size[part::num_parts]}
    return find_file_problems(path, share, MANIFEST_FILE, checksums=checksums)


def find_file_problems(path: Path, files: Mapping[str, FileRecord], said_by: str, *, checksums: bool) -> list[str]:
    """What is wrong with `files` in the directory `path`, one line each; `said_by` is the file with their records."""

    def check(name: str) -> str | None:
        return _find_problem(path / name, files[name], said_by, checksums)

    problems = map_in_threads(check, files, min(_MAX_THREADS, os.cpu_count() or 1))
    return sorted(problem for problem in problems if problem)


def summarize_problems(problems: Sequence[str]) -> str:
    """The first few problems in one line."""
    return list_some(problems, separator="; ")


def _find_problem(file: Path, expected: FileRecord, said_by: str, checksums: bool) -> str | None:
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, a device read without end
            return f"{file}: is not a regular file"
        size = status.st_size
        if size != expected.size:
            how = "shorter" if size < expected.size else "longer"
            return f"{file}: {abs(expected.size - size):,} bytes {how} than {said_by} says"
        if not checksums:
            return None
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{shown(file)}: missing"
    except OSError as error:
        return f"{shown(file)}: cannot be read ({error.strerror})"
    return None if digest == expected.sha256 else f"{file}: SHA-256 differs from {said_by}: it is damaged"
