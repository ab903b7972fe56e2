"""SHA-256 of every tensor of a Hugging Face directory, computed once per file and kept.

Reading 220 GB takes minutes. So the digests of a file are kept in the user's cache ($XDG_CACHE_HOME/glmforge/digests,
else ~/.cache/glmforge/digests), and are valid while the file has the same path, size, inode and times of change. The
time of the inode (ctime) is among them: a program that sets the modification time back cannot set that one. What
changed
within the last seconds is not kept, for a second change may get the same time. A cache directory that others can write
to is not used.
"""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from glmforge.checkpoint.convert.hf_files import Shards
from glmforge.errors import CheckpointError
from glmforge.files import make_private, read_json, shown
from glmforge.observe.units import format_bytes
from glmforge.runtime.waiting import map_in_threads

logger = logging.getLogger(__name__)

_MAX_THREADS = 16
_CHUNK_BYTES = 4 << 20
_TOLD_BYTES = 1 << 30
_SETTLED_S = 2.0
_MAX_BYTES = 1 << 28


def tensor_digests(shards: Shards, files: Collection[Path] | None = None) -> dict[str, str]:
    """Name -> hexadecimal SHA-256 of a tensor's bytes, of the tensors in `files`; None: of all.

    Raises `CheckpointError` for a file that cannot be read.
    """
    of_file: dict[Path, list[str]] = {}
    for name in sorted(shards.names()):
        if files is None or shards.file(name) in files:
            of_file.setdefault(shards.file(name), []).append(name)
    state = {file: _state(file) for file in of_file}
    found: dict[str, str] = {}
    left: list[str] = []
    for file, names in of_file.items():
        kept = _kept(file, state[file])
        if kept.keys() >= set(names):
            found |= {name: kept[name] for name in names}
        else:
            left += names
    size = sum(_num_bytes(shards, name) for name in left)
    if size >= _TOLD_BYTES:
        logger.info("hashing %s of base weights; the digests are cached", format_bytes(size))
    found |= zip(left, map_in_threads(lambda name: _hash(shards, name), left, _MAX_THREADS), strict=True)
    for file in {shards.file(name) for name in left}:
        if _state(file) != state[file]:
            raise CheckpointError(f"{shown(file)}: changed while it was read; retry when writing has finished")
        _keep(file, state[file], {name: found[name] for name in of_file[file]})
    return found


def _num_bytes(shards: Shards, name: str) -> int:
    return math.prod(shards.shape(name)) * shards.dtype(name).itemsize


def _hash(shards: Shards, name: str) -> str:
    digest, left = hashlib.sha256(), _num_bytes(shards, name)
    buffer = memoryview(bytearray(min(left, _CHUNK_BYTES)))
    try:
        with shards.file(name).open("rb", buffering=0) as file:
            file.seek(shards.start(name))
            while left:
                count = file.readinto(buffer[: min(left, len(buffer))])
                if not count:
                    raise CheckpointError(f"{shown(shards.file(name))}: was truncated while it was read")
                digest.update(buffer[:count])
                left -= count
    except OSError as error:
        raise CheckpointError(f"{shown(shards.file(name))}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _state(file: Path) -> dict[str, int | str]:
    """What tells a file from a changed one, without reading it."""
    try:
        found = file.stat()
    except OSError as error:
        raise CheckpointError(f"{shown(file)}: cannot be read: {error.strerror or error}") from error
    return {
        "path": str(file.absolute()),
        "size": found.st_size,
        "inode": found.st_ino,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
    }


def _kept(file: Path, state: Mapping[str, int | str]) -> dict[str, str]:
    """The digests that were kept of the file in this state, or empty."""
    directory = _cache()
    place = None if directory is None else directory / _name(file)
    if place is None or not place.is_file():
        return {}
    try:
        content = read_json(place, dict, error=CheckpointError, max_bytes=_MAX_BYTES)
    except CheckpointError as error:
        logger.debug("not used: %s", error)
        return {}
    digests = content.get("digests")
    return digests if content.get("state") == state and isinstance(digests, dict) else {}


def _keep(file: Path, state: Mapping[str, int | str], digests: Mapping[str, str]) -> None:
    directory = _cache()
    if directory is None or time.time() - int(state["ctime_ns"]) / 1e9 < _SETTLED_S:
        return
    partial = directory / f".{_name(file)}.{os.getpid()}"
    try:
        partial.write_text(json.dumps({"state": state, "digests": digests}), "utf-8")
        partial.replace(directory / _name(file))
    except OSError as error:
        partial.unlink(missing_ok=True)
        logger.debug("digests of %s are not cached: %s", file, error)


def _name(file: Path) -> str:
    return f"{hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:32]}.json"


def _cache() -> Path | None:
    """The directory of digests, writable only by this user; None if it cannot be created."""
    try:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glmforge" / "digests"
        make_private(directory)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        logger.debug("digests are not cached: %s", error)
        return None
    return directory
