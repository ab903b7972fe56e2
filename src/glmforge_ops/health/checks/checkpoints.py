"""The directory of checkpoints: every node writes to it, and the planned ones must fit."""

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.disk import judge_writing
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped

_NO_PATH = skipped("no checkpoint_path and no shared_path is given", "give one in cluster.yaml")


def write(facts: Facts, context: Context) -> Outcome:
    """Make, fsync, rename and remove a file, as a checkpoint is written."""
    path = facts.text("path")
    if path is None:
        return _NO_PATH
    if context.cluster.checkpoint_path is None:
        return skipped("is shared_path: see shared.mounted")
    if facts.text("kind") != "directory":
        return failed(f"{path} is not there", "a directory", f"mkdir -p {path}, or mount what it lies on")
    return judge_writing(facts)


def space(facts: Facts, context: Context) -> Outcome:
    """Room for what the run is going to keep."""
    planned = context.cluster.planned_checkpoint_gb
    if facts.text("path") is None:
        return _NO_PATH
    if planned is None:
        return skipped("planned_checkpoint_gb is not given", "take it from 'glmforge plan'")
    free = facts.number("free")
    if free is None:
        return skipped("there is no such directory")
    value, threshold = f"{free / 1e9:,.1f} GB free", f"at least {planned:,.1f} GB, as planned"
    if free / 1e9 >= planned:
        return passed(value, threshold)
    return failed(value, threshold, "remove old checkpoints, or keep fewer: checkpoint.keep_last, keep_every_steps")


CHECKS = (
    Check("checkpoints.write", "checkpoints can be written by every node", Level.QUICK, "checkpoints", judge=write),
    Check("checkpoints.space", "the planned checkpoints fit", Level.QUICK, "checkpoints", judge=space),
)
