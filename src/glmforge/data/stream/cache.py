"""Shards on the node's own disk.

Training reads rows in random order, which shared storage serves badly when thousands of processes ask at once. With
`data.cache_dir` each node copies the sources once, from beginning to end, and reads its copies.

Every process of a node calls `copy_shards`: one copies while the others wait and then find all there. It needs no
process group. How a file is copied, and when a copy is good, is described in `glmforge.data.copies`.
"""

from pathlib import Path

from glmforge.config.data import DataConfig, SourceConfig
from glmforge.data.copies import Copy, copy_missing
from glmforge.data.files import alone_in
from glmforge.data.tokens.shards import ShardInfo, loss_path, shard_paths
from glmforge.errors import DataError
from glmforge.runtime.place import place_for


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
        files = [file for source in data.sources for file in _files(source.path, data.cache_dir)]
        copy_missing(files, data.cache_dir, setting="data.cache_dir", what="shards")


def _copy_prefix(prefix: Path, cache_dir: Path) -> Path:
    """A copy keeps the name."""
    return place_for(prefix.parent, cache_dir) / prefix.name


def _files(prefix: Path, cache_dir: Path) -> list[Copy]:
    """The shard's files, the description first; a copy of what the shard does not have is removed."""
    bin_path, idx_path, json_path = shard_paths(prefix)
    for original in (bin_path, idx_path):
        if not original.is_file():
            raise DataError(f"{original}: missing; data.sources needs a shard's .bin and .idx")
    directory = _copy_prefix(prefix, cache_dir).parent
    files = []
    for original in (json_path, loss_path(prefix), idx_path, bin_path):
        if original.exists():
            files.append(Copy(original, directory / original.name, _expected_checksum(original)))
        else:
            (directory / original.name).unlink(missing_ok=True)
    return files


def _expected_checksum(original: Path) -> str | None:
    """Of a .bin file whose shard has a description."""
    description = original.with_suffix(".json")
    if original.suffix != ".bin" or not description.exists():
        return None
    return ShardInfo.load(description).bin_sha256
