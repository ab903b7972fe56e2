"""What has come of a sweep's points: a row for each, read from the runs' own files.

The held-out loss is the mean over the held-out sources of each source's newest evaluation, in bits per byte, so that
runs of different tokenizers compare. What a run has not recorded is None. A run whose records are damaged is told as
such and does not hide the others.
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
from glmforge_ops.jobs.sweep.points import value_words

MEASURES = {
    "loss": "loss of the last record, nats/token",
    "best_loss": "smallest loss of any record, nats/token",
    "held_out": "held-out loss, bits/byte",
    "tokens_per_second": "median",
    "seconds": "spent in training steps",
    "step": "steps done",
}
"""What rows can be sorted by, besides settings, 'task' and 'state'."""

LARGER_IS_BETTER = {"tokens_per_second", "step"}


@dataclass(frozen=True)
class Curve:
    """A quantity over tokens."""

    tokens: list[float]
    values: list[float]


@dataclass(frozen=True)
class Result:
    """A point, its job's state, and what its run has recorded."""

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
    losses: Curve = field(default_factory=lambda: Curve([], []), repr=False)

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
    losses = [(record["tokens"], record["loss"]) for record in metrics if _is_number(record.get("loss"))]
    finite = [loss for _, loss in losses if math.isfinite(loss)]
    speeds = [record["tokens_per_second"] for record in metrics if _is_number(record.get("tokens_per_second"))]
    return {
        "step": metrics[-1].get("step"),
        "loss": losses[-1][1] if losses else None,
        "best_loss": min(finite, default=None),
        "held_out": _held_out(evaluations),
        "tokens_per_second": median(speeds) if speeds else None,
        "seconds": _seconds(metrics),
        "losses": Curve([tokens for tokens, _ in losses], [loss for _, loss in losses]),
    }


def sort_key(results: Sequence[Result], key: str, settings: Sequence[str]) -> str:
    """`key` if results can be sorted by it. Raises `LaunchError`, with those that can be."""
    known = [*MEASURES, "task", "state", *settings]
    if key not in known:
        raise LaunchError(f"--sort {key}: no column of this sweep; it has {', '.join(known)}")
    return key


def ranked(results: Iterable[Result], key: str) -> list[Result]:
    """The best first; those without the value last, by their number."""

    def order(result: Result) -> tuple[Any, ...]:
        value = result.value(key)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return 2, 0, result.task
        if _is_number(value):
            return 0, -value if key in LARGER_IS_BETTER else value, result.task
        return 1, value_words(value), result.task

    return sorted(results, key=order)


def default_measure(results: Iterable[Result]) -> str:
    """The held-out loss where there is one, else that of training."""
    return "held_out" if any(result.held_out is not None for result in results) else "loss"


def as_row(result: Result) -> dict[str, Any]:
    """For programs: every field but the curve; numbers that JSON does not know are None."""
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
    for result in results:
        row = as_row(result)
        writer.writerow([_cell(row["settings"].get(name) if name in settings else row[name]) for name in columns])
    return out.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else json.dumps(value) if isinstance(value, dict | list | bool) else value


def _held_out(evaluations: Iterable[dict[str, Any]]) -> float | None:
    newest = {str(record.get("source")): record["bits_per_byte"] for record in evaluations if "bits_per_byte" in record}
    values = [value for value in newest.values() if _is_number(value)]
    return mean(values) if values else None


def _seconds(metrics: Iterable[dict[str, Any]]) -> float:
    """A record speaks for the steps since the one before it."""
    seconds, previous = 0.0, 0
    for record in metrics:
        if _is_number(record.get("step_seconds")):
            seconds += record["step_seconds"] * (record["step"] - previous)
        previous = record["step"]
    return seconds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
