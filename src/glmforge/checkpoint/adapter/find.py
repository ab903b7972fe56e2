"""Which checkpoint of adapters a path means: as `find_checkpoint`, and what it is instead of one is said by name."""

from pathlib import Path

from glmforge.checkpoint.adapter.peft_settings import is_peft
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.manifest import MANIFEST_FILE, summarize_problems
from glmforge.checkpoint.format.sharded_adapter import ShardedAdapter, read_adapter, read_slice_metadata
from glmforge.checkpoint.format.verify import verify_checkpoint
from glmforge.errors import CheckpointError
from glmforge.files import shown


def find_adapter(source: Path) -> tuple[Path, ShardedAdapter]:
    """The directory that `source` means, and its metadata. Raises `CheckpointError` if it is not a checkpoint."""
    if is_peft(source):
        raise CheckpointError(f"{shown(source)}: is a PEFT adapter; convert it with 'glmforge adapter convert'")
    if (source / "config.json").is_file():
        raise CheckpointError(f"{shown(source)}: is a Hugging Face model; give a run with adapters, or a checkpoint")
    path = find_checkpoint(source)
    return path, read_adapter(path)


def check_adapter(path: Path) -> None:
    """Raise `CheckpointError` if the files of a checkpoint of adapters are not those of its manifest, or do not hold
    what it says of its tensors; on a node's own disk, where there is no manifest, the latter alone."""
    if not (path / MANIFEST_FILE).exists():
        read_slice_metadata(path)
    elif problems := verify_checkpoint(path):
        raise CheckpointError(summarize_problems(problems))
