"""Several runs beside each other: what they came to, and in what configuration, versions and code they differ."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from glmforge.config.schema import RunConfig
from glmforge.doctor.run_state import number
from glmforge.errors import GlmforgeError
from glmforge.files import escaped
from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog, read_run
from glmforge.observe.units import format_count, format_duration
from glmforge.report.canvas import smoothing_window
from glmforge.report.tables import training_seconds

MAX_RUNS = 16
_SCORES = ("bits_per_byte", "held_out_pair_accuracy")
_NO_DIFFERENCE = {"name", "output_dir"}
_MAX_CHARACTERS = 80


@dataclass(frozen=True)
class ComparedRun:
    """A run under a name that no other of them has."""

    name: str
    log: RunLog


@dataclass(frozen=True)
class Figure:
    """A number of each run, None where it is not known, and how it is written."""

    label: str
    values: Sequence[float | None]
    write: Callable[[float], str]
    is_count: bool = False
    """Its difference is of no interest."""

    def cells(self) -> list[str]:
        """The numbers, those after the first with their difference to it."""
        first = self.values[0]
        return [
            self._cell(value, None if place == 0 or self.is_count else first) for place, value in enumerate(self.values)
        ]

    def _cell(self, value: float | None, first: float | None) -> str:
        if value is None:
            return "-"
        if first is None:
            return self.write(value)
        sign = "-" if value < first else "+"
        return f"{self.write(value)} ({sign}{self.write(abs(value - first))})"


def read_runs(paths: Sequence[Path]) -> list[ComparedRun]:
    """Raises `GlmforgeError` for fewer than two or too many runs, or one that cannot be read."""
    if not 2 <= len(paths) <= MAX_RUNS:
        raise GlmforgeError(f"compare: pass 2 to {MAX_RUNS} runs, not {len(paths)}")
    names = [path.absolute().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise GlmforgeError("compare: a run is given twice; pass each once")
    return [ComparedRun(escaped(name), read_run(path)) for name, path in zip(names, paths, strict=True)]


def figures(runs: Sequence[ComparedRun]) -> list[Figure]:
    """What each run came to; numbers that no run has are omitted."""

    def of(label: str, value: Callable[[RunLog], float | None], write: Callable[[float], str], **more: Any) -> Figure:
        return Figure(label, [value(run.log) for run in runs], write, **more)

    four = "{:.4f}".format
    found = [
        of("steps", lambda log: number(log.metrics[-1].get("step")), "{:,.0f}".format, is_count=True),
        of("tokens", lambda log: number(log.metrics[-1].get("tokens")), format_count, is_count=True),
        of("training time", lambda log: training_seconds(log.metrics), format_duration),
        *(
            of(label, lambda log, name=name: _final(log.metrics, name), four)  # type: ignore[misc]
            for name, label in (("loss", "loss"), ("pair_loss", "loss of pairs"), ("reward", "reward"))
        ),
        *(
            of(f"{pick} {label}", lambda log, name=name, best=best: _score(log, name, best), four)  # type: ignore[misc]
            for name, label, lowest in zip(
                (*_SCORES, "benchmark_score"),
                ("bits/byte", "pair accuracy", "benchmarks"),
                (min, max, max),
                strict=True,
            )
            for pick, best in (("last", None), ("best", lowest))
        ),
        of("median tokens/s", lambda log: _median(log.metrics, "tokens_per_second"), format_count),
        of("median grad norm", lambda log: _median(log.metrics, "grad_norm"), "{:.3g}".format),
        of("imbalance", lambda log: _final(log.metrics, "max_violation_max"), "{:.3f}".format),
    ]
    return [one for one in found if any(value is not None for value in one.values)]


def scores(log: RunLog, name: str) -> list[tuple[int, float]]:
    """Step and mean over all sources (or benchmarks) of each evaluation that has finite numbers."""
    found: dict[int, list[float]] = defaultdict(list)
    for record in log.benchmarks if name == "benchmark_score" else log.evaluations:
        value, step = number(record.get(name)), record.get("step")
        if value is not None and math.isfinite(value) and isinstance(step, int):
            found[step].append(value)
    return [(step, fmean(values)) for step, values in sorted(found.items())]


def differences(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """Settings, versions and facts of the machine that not all runs have in common, each with its value in every run.

    Defaults are filled in, so that a setting which an older version did not know is no difference.
    """
    flat = [_leaves(_resolved(run.log.config)) | _environment(run.log.info) for run in runs]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if key not in _NO_DIFFERENCE]
    return [
        (escaped(key), [_words(one.get(key, "-")) for one in flat])
        for key in keys
        if len({_words(one.get(key, "-"), None) for one in flat}) > 1
    ]


def _resolved(config: dict[str, Any]) -> dict[str, Any]:
    try:
        return RunConfig.model_validate(config).model_dump(mode="json")
    except (ValueError, TypeError, RecursionError):  # of another version: as it is
        return config


def _environment(info: dict[str, Any]) -> dict[str, Any]:
    chosen = {name: info[name] for name in ("git_revision", "versions", "machine") if name in info}
    return _leaves(chosen)


def _leaves(value: Any, place: str = "", depth: int = 0) -> dict[str, Any]:
    """Dotted keys; sources and other members of lists under their name, phases and those without one by number."""
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        named = (
            {} if place == "phases" else {i: one.get("name", i) for i, one in enumerate(value) if isinstance(one, dict)}
        )
        value = {str(named.get(i, i)): one for i, one in enumerate(value)}
    if not isinstance(value, dict) or depth > 20:
        return {place: value}
    found: dict[str, Any] = {}
    for key, one in value.items():
        found |= _leaves(one, f"{place}.{key}" if place else str(key), depth + 1)
    return found


def _words(value: object, most: int | None = _MAX_CHARACTERS) -> str:
    text = escaped(str(value))
    return text if most is None or len(text) <= most else f"{text[: most - 3]}..."


def _values(records: Sequence[Record], name: str) -> list[float]:
    found = (number(record.get(name)) for record in records)
    return [value for value in found if value is not None and math.isfinite(value)]


def _final(records: Sequence[Record], name: str) -> float | None:
    """The mean of the last records, as many as the curves are smoothed over."""
    values = _values(records, name)
    return fmean(values[-smoothing_window(len(values)) :]) if values else None


def _median(records: Sequence[Record], name: str) -> float | None:
    values = _values(records, name)
    return median(values) if values else None


def _score(log: RunLog, name: str, best: Callable[..., float] | None) -> float | None:
    values = [value for _, value in scores(log, name)]
    if not values:
        return None
    return values[-1] if best is None else best(values)
