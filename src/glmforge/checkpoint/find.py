"""Which checkpoint a path means: wherever a command or a configuration names a model, these forms are understood.

runs/demo                              a run: its newest complete checkpoint
runs/demo/checkpoints                  the same
runs/demo/checkpoints/step-00000900    a checkpoint
runs/demo@900                          a step of a run, also runs/demo@step-900
"""

import re
from pathlib import Path

from glmforge.checkpoint.format.meta import META_FILE
from glmforge.checkpoint.format.store import checkpoint_path, latest_checkpoint, list_checkpoints
from glmforge.checkpoint.format.wording import list_some
from glmforge.errors import CheckpointError
from glmforge.files import shown

_STEP_OF_RUN = re.compile(r"(?P<run>.+)@(step-)?(?P<step>\d{1,18})")


def find_checkpoint(source: Path) -> Path:
    """The directory of the checkpoint that `source` means. Raises `CheckpointError` if none is found."""
    if names_step_of_run(source):
        return _step_of_run(source)
    if not source.is_dir():
        raise CheckpointError(f"{shown(source)}: no such directory; pass a run, a checkpoint or an export")
    if (source / META_FILE).is_file():
        return source
    newest = (latest_checkpoint(root) for root in (source, source / "checkpoints"))
    found = next(filter(None, newest), None)
    if found is None:
        raise CheckpointError(
            f"{source}: contains neither checkpoints nor a Hugging Face model (config.json); pass a run, a "
            "checkpoint or an export"
        )
    return found


def names_step_of_run(source: Path) -> bool:
    """Whether it is RUN@STEP, and not a directory that happens to be called so."""
    return _STEP_OF_RUN.fullmatch(str(source)) is not None and not source.exists()


def _step_of_run(source: Path) -> Path:
    match = _STEP_OF_RUN.fullmatch(str(source))
    assert match is not None
    run, step = Path(match["run"]), int(match["step"])
    roots = [root for root in (run / "checkpoints", run) if list_checkpoints(root)]
    if not roots:
        raise CheckpointError(f"{shown(source)}: {shown(run)} has no checkpoints")
    path = checkpoint_path(roots[0], step)
    if not path.is_dir():
        there = list_some([found.name for found in list_checkpoints(roots[0])])
        raise CheckpointError(f"{shown(source)}: no {path.name} in {roots[0]}; available: {there}")
    return path
