"""Which checkpoints stay on the disk.

Of the permanent ones, the newest `keep_last` stay, those of every `keep_every_steps` steps, and the best one by
`keep_best`; of the ephemeral ones, the newest `keep_ephemeral`. The newest complete one is never deleted, of either
kind. Broken ones neither count nor are deleted: something went wrong that a person should see, and they may be all
there is to rescue. Those that a run left after a loss spike go as soon as there is a whole one of a later step; those
that the user left stay.

On nodes' own disks the newest `keep_ephemeral` stay, of both kinds, and a permanent one until there is one as new on
shared storage. Incomplete ones are what is left when a node has been replaced; on an unwatched disk they are
deleted, with a warning, when a newer one is whole.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from glmforge.checkpoint.collective import rank, run_each, run_on_rank_zero
from glmforge.checkpoint.format.manifest import find_problems
from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.format.store import (
    checkpoint_path,
    delete_checkpoint,
    list_checkpoints,
    list_rolled_back,
    step_of,
)
from glmforge.checkpoint.node_local.local import LocalStep, survey
from glmforge.config.checkpoint import CheckpointConfig, KeepBestConfig
from glmforge.errors import CheckpointError

logger = logging.getLogger(__name__)


def apply_retention(root: Path, config: CheckpointConfig) -> list[Path]:
    """Delete the checkpoints under `root` that need not stay and return them. All ranks call this together.

    The newest complete checkpoint is never among them. Raises `CheckpointError` if one cannot be deleted.
    """
    return run_on_rank_zero(lambda: list(delete_old_checkpoints(root, config)))


def retain_local(root: Path, keep_ephemeral: int, shared: Path) -> None:
    """Delete the checkpoints on nodes' own disks that need not stay. All ranks call this together.

    Args:
        root: the run's directory on this node's disk.
        shared: the run's checkpoints on shared storage.
    """
    newest_lasting = run_on_rank_zero(lambda: next((step_of(path) for path in _whole(shared)[0]), -1))
    steps = survey(root)
    whole = [step for step in steps if not step.is_incomplete]
    doomed = list(_doomed_locally(steps, whole, keep_ephemeral, newest_lasting))
    for found in doomed:
        if found.is_incomplete and rank() == 0:
            logger.warning("deleting %s on all nodes: %s", checkpoint_path(root, found.step), found.describe())

    def delete() -> None:
        aside = [path for path in list_rolled_back(root) if any(step_of(path) < step.step for step in whole)]
        for path in [*aside, *(checkpoint_path(root, found.step) for found in doomed)]:
            with suppress(FileNotFoundError):  # the other ranks of the node are at it as well
                delete_checkpoint(path)

    run_each(delete)


def best_checkpoint(checkpoints: Iterable[Path], keep_best: KeepBestConfig) -> tuple[Path, float] | None:
    """The checkpoint with the best value, and the value; among equals the newest. None if none has a value.

    Args:
        checkpoints: readable ones, newest first.
    """
    values = ((path, read_meta(path).measured.get(keep_best.metric)) for path in checkpoints)
    known = [(path, value) for path, value in values if value is not None]
    best = max if keep_best.mode == "max" else min
    return best(known, key=lambda one: one[1], default=None)


def delete_old_checkpoints(root: Path, config: CheckpointConfig) -> Iterator[Path]:
    """`apply_retention` by one process alone; another one may be at it as well. Raises `OSError`."""
    permanent, ephemeral = _whole(root)
    newest = max(map(step_of, [*permanent[:1], *ephemeral[:1]]), default=-1)
    best = best_checkpoint(permanent, config.keep_best) if config.keep_best is not None else None
    every = config.keep_every_steps
    doomed = [path for path in permanent[config.keep_last :] if every is None or step_of(path) % every != 0]
    doomed = [path for path in doomed if best is None or path != best[0]]
    doomed += ephemeral[config.keep_ephemeral :]
    doomed += [path for path in list_rolled_back(root) if step_of(path) < newest]
    for path in doomed:
        with suppress(FileNotFoundError):
            delete_checkpoint(path)
            yield path


def _whole(root: Path) -> tuple[list[Path], list[Path]]:
    """The complete checkpoints under `root`: permanent ones and ephemeral ones, newest first."""
    tiers: tuple[list[Path], list[Path]] = [], []
    for path in list_checkpoints(root):
        if not find_problems(path, checksums=False):
            with suppress(CheckpointError):  # whole files, but of another version of the library
                tiers[read_meta(path).ephemeral].append(path)
    return tiers


def _doomed_locally(
    found: list[LocalStep], whole: list[LocalStep], keep: int, newest_lasting: int
) -> Iterator[LocalStep]:
    for step in whole[keep:]:
        if step.ephemeral or step.step <= newest_lasting:
            yield step
    for step in found:
        if step.is_incomplete and whole and step.step < whole[0].step:
            yield step
