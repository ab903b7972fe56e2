"""What a run's source of batches keeps in files of the checkpoint: rollouts that wait, a buffer, a queue.

    step-00000120/source-00003-of-00008-buffer.safetensors      of data rank 3 of 8

The files are written with the tensors, stand in the manifest like all others, and are given back when the run goes on.
With another number of data ranks each saved one's files go to exactly one of the new ones, in order: of 4 ranks that
become 2 the first gets those of 0 and 1; of 2 that become 4 the first gets those of 0, the third those of 1, and the
others none.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from glmforge.checkpoint.collective import run_each, run_on_rank_zero
from glmforge.checkpoint.format.manifest import MANIFEST_FILE, FileRecord, read_manifest
from glmforge.checkpoint.node_local.parts_of_ranks import merged_records, read_parts, whole_saves
from glmforge.errors import CheckpointError
from glmforge.files import shown
from glmforge.runtime.durable import fsync_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_STORED = re.compile(r"source-(?P<share>\d{5,7})-of-(?P<num_shares>\d{5,7})-(?P<name>.+)", re.ASCII)


def stored_files(files: Mapping[str, bytes], share: int, num_shares: int) -> dict[str, bytes]:
    """The files of data rank `share` of `num_shares` under their names in the checkpoint. Raises `CheckpointError`."""
    for name in files:
        if not _NAME.fullmatch(name):
            raise CheckpointError(
                f"state_files of the source: {shown(name)} is not a valid name; use up to 100 letters, digits, '._-'"
            )
    return {f"source-{share:05d}-of-{num_shares:05d}-{name}": content for name, content in files.items()}


def is_source_file(name: str) -> bool:
    """Whether a file of a checkpoint is one of its source."""
    return _STORED.fullmatch(name) is not None


def write_files(directory: Path, files: Mapping[str, bytes]) -> dict[str, FileRecord]:
    """Write `files` and force them to the disk. Raises `OSError`."""
    for name, content in files.items():
        (directory / name).write_bytes(content)
        fsync_file(directory / name)
    return {name: FileRecord(size=len(c), sha256=hashlib.sha256(c).hexdigest()) for name, c in files.items()}


def read_files(path: Path, share: int, num_shares: int) -> list[dict[str, bytes]]:
    """What the checkpoint `path` has for data rank `share` of `num_shares`: the files of each saved data rank that it
    takes the place of, by the names that the source gave. All ranks call this together."""
    names = run_on_rank_zero(lambda: sorted(filter(is_source_file, _recorded(path))))
    found: dict[int, dict[str, str]] = {}
    for name in names:
        stored = _STORED.fullmatch(name)
        assert stored is not None
        num_saved = int(stored["num_shares"])
        for saved in range(num_saved):
            if saved * num_shares // num_saved == share:
                found.setdefault(saved, {})
        if int(stored["share"]) in found:
            found[int(stored["share"])][stored["name"]] = name

    def read() -> list[dict[str, bytes]]:
        return [{name: (path / file).read_bytes() for name, file in found[saved].items()} for saved in sorted(found)]

    return run_each(read)


def _recorded(path: Path) -> Mapping[str, FileRecord]:
    """The files of a checkpoint; on a node's own disk the parts of its ranks name them."""
    if (path / MANIFEST_FILE).exists():
        return read_manifest(path).files
    saves = whole_saves(read_parts(path)[0])
    return merged_records(saves[0]) if saves else {}
