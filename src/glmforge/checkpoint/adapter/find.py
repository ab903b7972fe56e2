"""Which checkpoint of adapters a path means: as `find_checkpoint`, and what it is instead of one is said by name."""

from pathlib import Path

from glmforge.checkpoint.adapter.peft_settings import is_peft
from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.sharded_adapter import ShardedAdapter, read_adapter
from glmforge.errors import CheckpointError
from glmforge.files import shown


def find_adapter(source: Path) -> tuple[Path, ShardedAdapter]:
    """The directory that `source` means, and what it says of itself. Raises `CheckpointError` if it is none."""
    if is_peft(source):
        raise CheckpointError(
            f"{shown(source)}: is an adapter as PEFT keeps it; 'glmforge adapter convert' makes a checkpoint of it"
        )
    if (source / "config.json").is_file():
        raise CheckpointError(f"{shown(source)}: is a Hugging Face model; give a run with adapters, or a checkpoint")
    path = find_checkpoint(source)
    return path, read_adapter(path)
