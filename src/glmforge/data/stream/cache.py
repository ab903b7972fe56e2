"""Shards on the node's own disk.

Training reads rows in random order, which shared storage serves badly when thousands of processes ask at once. With
`data.cache_dir` each node copies the sources once, from beginning to end, and reads its copies.

Every process of a node calls `copy_shards`: a lock on the directory lets one copy while the others wait and then find
all there. It needs no process group, and if the copying process dies, the lock goes to the next. A file takes its
name when it is whole, on the disk, as long as the original and, where the shard's description tells its checksum, of
that checksum; it then gets the original's time of change, by which (with the length, as rsync does) a later run sees
that the copy is still good.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from glmforge.config.data import DataConfig, SourceConfig
from glmforge.data.files import alone_in, discard_partial, disk_errors, partial_path, publish
from glmforge.data.tokens.shards import ShardInfo, loss_path, shard_paths
from glmforge.errors import DataError

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 16 << 20


def local_prefix(source: SourceConfig, data: DataConfig) -> Path:
    """The shard to read: the node's copy with `data.cache_dir`, else the source's own files."""
    return source.path if data.cache_dir is None else _copy_prefix(source.path, data.cache_dir)


def copy_shards(data: DataConfig) -> None:
    """Copy what is missing of the sources to `data.cache_dir`; does nothing without one.

    Raises:
        DataError: there is too little space, or a copy differs from its original.
    """
    if data.cache_dir is None:
        return
    with alone_in(data.cache_dir):
        missing = [pair for source in data.sources for pair in _missing_files(source.path, data.cache_dir)]
        _check_space(data.cache_dir, sum(original.stat().st_size for original, _ in missing))
        for original, copy in missing:
            _copy(original, copy)


def _copy_prefix(prefix: Path, cache_dir: Path) -> Path:
    """Shards of one name from different directories are kept apart; a copy keeps the name."""
    place = hashlib.sha256(str(prefix.parent.resolve()).encode()).hexdigest()[:12]
    return cache_dir / place / prefix.name


def _missing_files(prefix: Path, cache_dir: Path) -> list[tuple[Path, Path]]:
    """(original, copy) of the shard's files that have no good copy, the description first."""
    bin_path, idx_path, json_path = shard_paths(prefix)
    for original in (bin_path, idx_path):
        if not original.is_file():
            raise DataError(f"{original}: missing; data.sources needs a shard's .bin and .idx")
    directory = _copy_prefix(prefix, cache_dir).parent
    pairs = []
    for original in (json_path, loss_path(prefix), idx_path, bin_path):
        copy = directory / original.name
        if not original.exists():
            copy.unlink(missing_ok=True)
        elif not _are_equal(original, copy):
            pairs.append((original, copy))
    return pairs


def _are_equal(original: Path, copy: Path) -> bool:
    """By length and time of change, to the second, as file systems round it differently."""
    if not copy.is_file():
        return False
    first, second = original.stat(), copy.stat()
    return (first.st_size, int(first.st_mtime)) == (second.st_size, int(second.st_mtime))


def _check_space(cache_dir: Path, needed: int) -> None:
    free = shutil.disk_usage(cache_dir).free
    if needed > free:
        raise DataError(
            f"data.cache_dir {cache_dir}: {needed / 1e9:,.1f} GB of shards are to be copied and {free / 1e9:,.1f} GB "
            "are free; make room, choose another disk, or set cache_dir to null"
        )


def _copy(original: Path, copy: Path) -> None:
    logger.info("copying %s to %s", original, copy)
    try:
        checksum = _write_copy(original, copy)
        expected = _expected_checksum(original)
        if expected not in (None, checksum):
            raise DataError(f"{original}: its checksum is not the one in its .json; write the shard again")
        publish(copy)
    finally:
        discard_partial(copy)


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
        raise DataError(f"{original}: changed while it was copied; start again when it is whole")
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); make it readable") from error


def _expected_checksum(original: Path) -> str | None:
    """Of a .bin file whose shard has a description."""
    description = original.with_suffix(".json")
    if original.suffix != ".bin" or not description.exists():
        return None
    return ShardInfo.load(description).bin_sha256
