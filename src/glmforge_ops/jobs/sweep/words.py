"""A sweep's results as lines for people."""

from collections.abc import Sequence

from glmforge.observe.units import format_count, format_duration
from glmforge_ops.jobs.sweep.points import value_words
from glmforge_ops.jobs.sweep.results import Result

COLUMNS = (
    ("state", False),
    ("step", True),
    ("loss", True),
    ("best", True),
    ("held-out", True),
    ("tokens/s", True),
    ("time", True),
)
"""After the job and its settings; whether a column holds numbers."""

_MAX_SETTING = 40


def cells_of(result: Result, settings: Sequence[str]) -> list[str]:
    """After the job: a word for each setting, then for each of `COLUMNS`."""
    return [
        *(_setting(result, key) for key in settings),
        result.state,
        _step(result),
        _number(result.loss, ".4f"),
        _number(result.best_loss, ".4f"),
        _number(result.held_out, ".4f"),
        "" if result.tokens_per_second is None else format_count(result.tokens_per_second),
        "" if result.seconds is None else format_duration(result.seconds),
    ]


def lines_of(results: Sequence[Result], settings: Sequence[str]) -> list[str]:
    """A table, then a line for each point that has something to say."""
    head = ["job", *settings, *(title for title, _ in COLUMNS)]
    rows = [head, *([result.job, *cells_of(result, settings)] for result in results)]
    is_number = [False, *([False] * len(settings)), *(number for _, number in COLUMNS)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    ]
    return [*lines, *(f"{result.job}: {result.why}" for result in results if result.why)]


def _setting(result: Result, key: str) -> str:
    if key not in result.settings:
        return ""
    text = value_words(result.settings[key])
    return text if len(text) <= _MAX_SETTING else f"…{text[1 - _MAX_SETTING :]}"


def _step(result: Result) -> str:
    if result.step is None:
        return ""
    return f"{result.step:,}" if result.num_steps is None else f"{result.step:,}/{result.num_steps:,}"


def _number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)
