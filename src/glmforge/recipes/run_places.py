"""Where a run writes: its directory, and what is to lie apart from it, on larger storage or among the logs of others.

For `checkpoint.dir` and `observe.tensorboard_dir` there are links in the run's directory under the usual names
(`checkpoints`, `tensorboard`). Everything else goes by those: any user of the run's directory, a report, an
export or a person, finds them without its configuration, and a run whose storage is not mounted is not taken for one
that has no checkpoints yet.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from glmforge.checkpoint.collective import run_on_rank_zero
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.observe.run import RunDirectory
from glmforge.parallel.world import World
from glmforge.recipes.run_lock import run_lock
from glmforge.runtime.traces import leave_trace


@contextmanager
def run_places(config: RunConfig, world: World) -> Iterator[None]:
    """Hold the places that the run writes to within the block. All ranks call this together.

    Raises `HeldError` if another process works in one of them, `CheckpointError` if a link would hide files or leads
    to nothing.
    """
    lease_s, apart = config.fault_tolerance.lock_lease_s, config.checkpoint.dir
    with leave_trace("glmforge train", config.output_dir), run_lock(config.output_dir, world, lease_s):
        run_on_rank_zero(lambda: _link_all(config))
        with run_lock(apart, world, lease_s) if apart is not None else nullcontext():
            yield


def _link_all(config: RunConfig) -> None:
    run, logs = RunDirectory(config.output_dir), config.observe.tensorboard_dir
    _check_still_there(run.checkpoints)
    if config.checkpoint.dir is not None:
        _link(run.checkpoints, _absolute(config.checkpoint.dir), "checkpoint.dir")
    if config.observe.tensorboard and logs is not None:
        if run.tensorboard.is_symlink():  # only a view of the metrics
            run.tensorboard.unlink()
        _link(run.tensorboard, _absolute(logs), "observe.tensorboard_dir")


def _check_still_there(link: Path) -> None:
    if link.is_symlink() and not link.is_dir():
        raise CheckpointError(f"{link}: broken link to {link.readlink()}; mount it, or remove the link to start over")


def _link(link: Path, target: Path, key: str) -> None:
    """Let `link` lead to `target`, which is made if it is a new one."""
    if link.is_symlink():
        if link.readlink() == target:
            return
        if not target.is_dir():
            raise CheckpointError(
                f"{key}: is {target}, but the run's files are in {link.readlink()}; move that directory there first"
            )
        link.unlink()
    elif link.is_dir():
        if any(link.iterdir()):
            raise CheckpointError(f"{key}: {link} already contains files; move it to {target} first, or remove {key}")
        link.rmdir()
    target.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target, target_is_directory=True)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links in it stay as they are
