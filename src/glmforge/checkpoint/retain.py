"""Which checkpoints stay on the disk.

The newest `keep_last` whole ones stay, and those of every `keep_every_steps` steps stay for good. Broken ones
neither count nor are deleted: something went wrong that a person should see, and they may be all there is to
rescue.
"""

from pathlib import Path

from glmforge.checkpoint.collective import run_on_rank_zero
from glmforge.checkpoint.manifest import find_problems
from glmforge.checkpoint.store import delete_checkpoint, list_checkpoints, step_of


def apply_retention(root: Path, keep_last: int, keep_every_steps: int | None = None) -> list[Path]:
    """Delete the checkpoints under `root` that need not stay and return them. All ranks call this together.

    The newest whole checkpoint is never among them. Raises `CheckpointError` if one cannot be deleted.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last = {keep_last}: at least one checkpoint must stay")
    return run_on_rank_zero(lambda: _apply_retention(root, keep_last, keep_every_steps))


def _apply_retention(root: Path, keep_last: int, keep_every_steps: int | None) -> list[Path]:
    whole = [path for path in list_checkpoints(root) if not find_problems(path, checksums=False)]
    doomed = [path for path in whole[keep_last:] if keep_every_steps is None or step_of(path) % keep_every_steps != 0]
    for path in doomed:
        delete_checkpoint(path)
    return doomed
