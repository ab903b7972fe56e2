"""A chain's stages as lines for people and rows for programs."""

from collections.abc import Sequence
from typing import Any

from glmforge_ops.jobs.chain.work import StageState
from glmforge_ops.jobs.state.find import as_dict

_HEAD = ("stage", "state", "step", "needs", "job", "number")


def lines_of(told: Sequence[StageState]) -> list[str]:
    """A table, then a line for each stage that has something to say."""
    rows = [_HEAD, *map(_row, told)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, *(f"{each.stage.name}: {words}" for each in told if (words := each.hint or each.job.why))]


def as_rows(told: Sequence[StageState]) -> list[dict[str, Any]]:
    """For programs: each stage with its job as 'glmforge jobs list --json' tells of it."""
    return [
        {"stage": each.stage.name, "needs": each.stage.needs, "hint": each.hint, **as_dict(each.job)} for each in told
    ]


def _row(each: StageState) -> tuple[str, ...]:
    files = each.job.files
    step = "" if files is None or files.step is None else f"{files.step:,}"
    of = "" if files is None or files.num_steps is None or not step else f"/{files.num_steps:,}"
    number = "" if files is None or files.submission is None else files.submission.id
    return (
        each.stage.name,
        each.job.state.value,
        step + of,
        " ".join(each.stage.needs),
        each.stage.job,
        number.partition(".")[0],
    )
