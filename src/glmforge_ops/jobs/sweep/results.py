"""What has come of a sweep's points: a row for each, read from the runs' own files; as a table, CSV, JSON or page.

The held-out loss is the mean over the held-out sources of each source's newest evaluation, in bits per byte, so that
runs of different tokenizers compare. What a run has not recorded is None. A run whose records are damaged is reported
as such and does not hide the others.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from glmforge.errors import LaunchError
from glmforge.observe.record_files import RunFileError, read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.observe.units import counted, format_count, format_duration
from glmforge.report.page import Tile
from glmforge.report.sweep_view import SweepRun, SweepView
from glmforge_ops.jobs.show import aligned
from glmforge_ops.jobs.sweep.points import is_number, value_words

MEASURES = {
    "loss": "last loss, nats/token",
    "best_loss": "best loss, nats/token",
    "held_out": "held-out loss, bits/byte",
    "tokens_per_second": "tokens/s",
    "seconds": "training time, s",
    "step": "steps",
}
"""What rows can be sorted by, besides settings, 'task' and 'state'."""

_LARGER_IS_BETTER = {"tokens_per_second", "step"}
_COLUMNS = ("state", "step", "loss", "best", "held-out", "tokens/s", "time")
"""After the job and its settings; all but the first hold numbers."""
_MAX_SETTING = 40


@dataclass(frozen=True)
class Result:
    """A point, its job's state, and what its run has recorded; `losses`: tokens and loss of each record."""

    task: int
    job: str
    settings: dict[str, Any]
    state: str
    why: str = ""
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    best_loss: float | None = None
    held_out: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    losses: Sequence[tuple[float, float]] = field(default=(), repr=False)

    def value(self, key: str) -> Any:
        """Of a measure, of 'task' or 'state', else of a setting; None where there is none."""
        return getattr(self, key) if key in {*MEASURES, "task", "state"} else self.settings.get(key)


def read_results(run: Path | None) -> dict[str, Any]:
    """Fields of `Result` as the run in a directory has recorded them; none if it has recorded nothing."""
    if run is None:
        return {}
    directory = RunDirectory(run)
    try:
        metrics = read_jsonl(directory.metrics) if directory.metrics.exists() else []
        evaluations = read_jsonl(directory.evaluation) if directory.evaluation.exists() else []
    except (RunFileError, OSError) as error:
        return {"why": str(error)}
    if not metrics:
        return {}
    losses = [(record["tokens"], record["loss"]) for record in metrics if is_number(record.get("loss"))]
    speeds = [record["tokens_per_second"] for record in metrics if is_number(record.get("tokens_per_second"))]
    newest = {
        str(row.get("source")): row["bits_per_byte"] for row in evaluations if is_number(row.get("bits_per_byte"))
    }
    return {
        "step": metrics[-1].get("step"),
        "loss": losses[-1][1] if losses else None,
        "best_loss": min((loss for _, loss in losses if math.isfinite(loss)), default=None),
        "held_out": mean(newest.values()) if newest else None,
        "tokens_per_second": median(speeds) if speeds else None,
        "seconds": _seconds(metrics),
        "losses": losses,
    }


def ranked(results: Sequence[Result], key: str | None, settings: Sequence[str]) -> list[Result]:
    """The best first, by `key` or else the default measure; those without the value last, by their number.

    Raises `LaunchError` for a column that the sweep does not have.
    """
    known = [*MEASURES, "task", "state", *settings]
    key = key or default_measure(results)
    if key not in known:
        raise LaunchError(f"--sort {key}: unknown column; choose one of {', '.join(known)}")

    def order(result: Result) -> tuple[Any, ...]:
        value = result.value(key)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return 2, 0, result.task
        if is_number(value):
            return 0, -value if key in _LARGER_IS_BETTER else value, result.task
        return 1, value_words(value), result.task

    return sorted(results, key=order)


def default_measure(results: Iterable[Result]) -> str:
    """The held-out loss where there is one, else that of training."""
    return "held_out" if any(result.held_out is not None for result in results) else "loss"


def lines_of(results: Sequence[Result], settings: Sequence[str]) -> list[str]:
    """A table, then a line for each point that has something to say."""
    rows = [["job", *settings, *_COLUMNS], *([result.job, *_cells(result, settings)] for result in results)]
    return [*aligned(rows, len(settings) + 2), *(f"{result.job}: {result.why}" for result in results if result.why)]


def as_row(result: Result) -> dict[str, Any]:
    """For programs: every field but the losses; numbers that JSON does not know are None."""
    row = asdict(result)
    del row["losses"]
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def as_csv(results: Iterable[Result], settings: Sequence[str]) -> str:
    """A line for each, settings in columns of their own."""
    out = io.StringIO()
    columns = ["task", "job", *settings, "state", "step", *(name for name in MEASURES if name != "step"), "why"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in map(as_row, results):
        values = [row["settings"].get(name) if name in settings else row[name] for name in columns]
        writer.writerow(json.dumps(value) if isinstance(value, dict | list | bool) else value for value in values)
    return out.getvalue()


def view_of(name: str, lead: str, results: Sequence[Result], settings: Sequence[str], sort: str | None) -> SweepView:
    """What `glmforge.report.sweep_page` draws: the best first. Raises `LaunchError` for an unknown column."""
    rows = ranked(results, sort, settings)
    measure = sort if sort in MEASURES else default_measure(results)
    best = ranked(results, measure, settings)[0]
    finished = sum(result.state == "finished" for result in results)
    tiles = [Tile("Finished", f"{finished:,}", f"of {counted(len(results), 'point')}")]
    if (value := best.value(measure)) is not None:
        words = ", ".join(f"{key} {value_words(best.settings.get(key))}" for key in settings)
        tiles += [Tile("Best", f"{value:.4g}", MEASURES[measure]), Tile("by", best.job, words)]
    runs = [
        SweepRun(
            name=row.job,
            settings={key: _plain(row.settings[key]) for key in settings if key in row.settings},
            words=_cells(row, settings),
            measure=row.value(measure),
            tokens=[tokens for tokens, _ in row.losses],
            losses=[loss for _, loss in row.losses],
        )
        for row in rows
    ]
    return SweepView(
        name=name,
        lead=lead,
        settings=list(settings),
        measure=MEASURES[measure],
        larger_is_better=measure in _LARGER_IS_BETTER,
        columns=[*((setting, False) for setting in settings), *((title, title != "state") for title in _COLUMNS)],
        runs=runs,
        tiles=tiles,
    )


def _cells(result: Result, settings: Sequence[str]) -> list[str]:
    """After the job: a word for each setting, then for each of `_COLUMNS`."""
    step = "" if result.step is None else f"{result.step:,}"
    of = "" if result.num_steps is None or not step else f"/{result.num_steps:,}"
    return [
        *(_short(value_words(result.settings[key])) if key in result.settings else "" for key in settings),
        result.state,
        step + of,
        *("" if value is None else f"{value:.4f}" for value in (result.loss, result.best_loss, result.held_out)),
        "" if result.tokens_per_second is None else format_count(result.tokens_per_second),
        "" if result.seconds is None else format_duration(result.seconds),
    ]


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SETTING else f"…{text[1 - _MAX_SETTING :]}"


def _seconds(metrics: Iterable[dict[str, Any]]) -> float:
    """A record speaks for the steps since the one before it."""
    seconds, previous = 0.0, 0
    for record in metrics:
        if is_number(record.get("step_seconds")):
            seconds += record["step_seconds"] * (record["step"] - previous)
        previous = record["step"]
    return seconds


def _plain(value: Any) -> float | str:
    return value if is_number(value) else value_words(value)
