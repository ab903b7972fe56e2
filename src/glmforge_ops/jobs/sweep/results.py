"""Results of a sweep: a row for each point, read from the runs' own files; as a table, CSV, JSON or page.

The held-out loss is the mean over the held-out sources of each source's newest evaluation, in bits per byte, so that
runs of different tokenizers compare. A run whose records are damaged is reported as such and does not hide the others.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from glmforge.errors import LaunchError
from glmforge.extras import needed_for
from glmforge.observe.record_files import RunFileError, read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.observe.units import counted, format_count, format_duration
from glmforge.report.page import Column, Summary, Tile, make_table
from glmforge.report.tables import training_seconds, values_of
from glmforge_ops.jobs.registry import Job
from glmforge_ops.jobs.show import aligned
from glmforge_ops.jobs.sweep.points import is_number, value_words


class Measure(NamedTuple):
    """A number of a run: its column in a table, what it is, and how it is written."""

    title: str
    words: str
    show: Callable[[Any], str]


MEASURES = {
    "step": Measure("step", "steps", "{:,}".format),
    "loss": Measure("loss", "last loss, nats/token", "{:.4f}".format),
    "best_loss": Measure("best", "best loss, nats/token", "{:.4f}".format),
    "held_out": Measure("held-out", "held-out loss, bits/byte", "{:.4f}".format),
    "tokens_per_second": Measure("tokens/s", "tokens/s", format_count),
    "seconds": Measure("time", "training time, s", format_duration),
}
_LARGER_IS_BETTER = {"tokens_per_second", "step"}
_MAX_SETTING = 40


@dataclass(frozen=True)
class Result:
    """A point, its job's state, and what its run has recorded.

    Attributes:
        measures: those of `MEASURES` that there are.
        losses: tokens and loss of each record.
    """

    task: int
    job: str
    settings: dict[str, Any]
    state: str
    why: str = ""
    num_steps: int | None = None
    measures: dict[str, float] = field(default_factory=dict)
    losses: Sequence[tuple[float, float]] = ()

    def value(self, key: str) -> Any:
        """Of a measure, of 'task' or 'state', else of a setting; None if there is no value."""
        if key in MEASURES:
            return self.measures.get(key)
        return getattr(self, key) if key in ("task", "state") else self.settings.get(key)


def read_result(task: int, settings: dict[str, Any], job: Job) -> Result:
    """Of a point whose job is known."""
    measures: dict[str, float] = {}
    losses: list[tuple[float, float]] = []
    why, run = job.why, None if job.files is None else job.files.description.run
    if run is not None:
        try:
            measures, losses = read_run(run)
        except (RunFileError, OSError) as error:
            why = why or str(error)
    num_steps = None if job.files is None else job.files.num_steps
    return Result(task, job.name, settings, job.state.value, why, num_steps, measures, losses)


def read_run(run: Path) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Measures and losses of a run, as far as it has recorded them. Raises `RunFileError`."""
    files = RunDirectory(run)
    metrics, evaluations = (read_jsonl(f) if f.exists() else [] for f in (files.metrics, files.evaluation))
    losses = [(record["tokens"], record["loss"]) for record in metrics if is_number(record.get("loss"))]
    finite = [loss for _, loss in losses if math.isfinite(loss)]
    speeds = values_of(metrics, "tokens_per_second")
    newest = {row.get("source"): row["bits_per_byte"] for row in evaluations if "bits_per_byte" in row}
    found = {
        "step": metrics[-1]["step"] if metrics else None,
        "loss": losses[-1][1] if losses else None,
        "best_loss": min(finite) if finite else None,
        "held_out": mean(newest.values()) if newest else None,
        "tokens_per_second": median(speeds) if speeds else None,
        "seconds": training_seconds(metrics) if metrics else None,
    }
    return {name: value for name, value in found.items() if value is not None}, losses


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
    """The held-out loss if there is one, else that of training."""
    return "held_out" if any("held_out" in result.measures for result in results) else "loss"


def lines_of(results: Sequence[Result], settings: Sequence[str]) -> list[str]:
    """A table, then a line for each point that has something to say."""
    titles = ["job", *settings, "state", *(measure.title for measure in MEASURES.values())]
    rows = [titles, *([result.job, *_cells(result, settings)] for result in results)]
    return [*aligned(rows, len(settings) + 2), *(f"{result.job}: {result.why}" for result in results if result.why)]


def as_row(result: Result) -> dict[str, Any]:
    """For programs; numbers that JSON does not know are None."""
    row = {name: getattr(result, name) for name in ("task", "job", "settings", "state", "why", "num_steps")}
    values = {name: result.measures.get(name) for name in MEASURES}
    return row | {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}


def as_csv(results: Iterable[Result], settings: Sequence[str]) -> str:
    """A line for each, settings in columns of their own."""
    out = io.StringIO()
    columns = ["task", "job", *settings, "state", *MEASURES, "why"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in map(as_row, results):
        values = [row["settings"].get(name) if name in settings else row[name] for name in columns]
        writer.writerow(json.dumps(value) if isinstance(value, dict | list | bool) else value for value in values)
    return out.getvalue()


def write_page(
    name: str, lead: str, results: Sequence[Result], settings: Sequence[str], sort: str | None, out: Path
) -> None:
    """The page of a sweep, the best first. Raises `LaunchError` for an unknown column, `ConfigError` for `out`."""
    with needed_for("sweep page: drawing"):
        from glmforge.report.sweep_page import SweepRun, write_sweep_page
    rows = ranked(results, sort, settings)
    key = sort if sort in MEASURES else default_measure(results)
    measure, best = MEASURES[key], ranked(results, key, settings)[0]
    finished = sum(result.state == "finished" for result in results)
    tiles = [Tile("Finished", f"{finished:,}", f"of {counted(len(results), 'point')}")]
    if (value := best.value(key)) is not None:
        words = ", ".join(f"{key} {value_words(best.settings.get(key))}" for key in settings)
        tiles += [Tile("Best", f"{value:.4g}", measure.words), Tile("by", best.job, words)]
    columns = [*map(Column, ("Run", *settings, "state")), *(Column(each.title, True) for each in MEASURES.values())]
    table = make_table("All points", columns, [[row.job, *_cells(row, settings)] for row in rows])
    runs = [
        SweepRun(row.job, {name: _plain(row.settings.get(name, "")) for name in settings}, row.value(key), row.losses)
        for row in rows
    ]
    write_sweep_page(Summary(name, lead, tiles, [table]), runs, measure.words, out)


def _cells(result: Result, settings: Sequence[str]) -> list[str]:
    """After the job: a word for each setting, the state, then each measure."""
    words = {name: MEASURES[name].show(value) for name, value in result.measures.items()}
    if result.num_steps is not None and "step" in words:
        words["step"] += f"/{result.num_steps:,}"
    shown = (_short(value_words(result.settings[key])) if key in result.settings else "" for key in settings)
    return [*shown, result.state, *(words.get(name, "") for name in MEASURES)]


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SETTING else f"…{text[1 - _MAX_SETTING :]}"


def _plain(value: Any) -> float | str:
    return value if is_number(value) else _short(value_words(value))
