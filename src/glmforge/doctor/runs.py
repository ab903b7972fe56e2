"""All runs below some directories, a line each, from the ends of their files. A damaged one is named as such."""

import fnmatch
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from glmforge.doctor.run_state import newest, number, planned_steps, state_of, time_of
from glmforge.errors import GlmforgeError
from glmforge.files import MAX_BYTES, open_regular, read_end, shown
from glmforge.observe.record_files import RunFileError, decode_line
from glmforge.observe.run import RunDirectory

_OF_A_RUN = {"metrics.jsonl", "events.jsonl", "run.json"}
_MAX_DEPTH = 8
_SCORES = {"bits_per_byte": min, "held_out_pair_accuracy": max, "benchmark_score": max}


@dataclass(frozen=True)
class RunRow:
    """A run; what is not known is None. Times are seconds; `started` is since 1970, `age_s` since its last change."""

    name: str
    path: str
    stage: str | None = None
    state: str = "damaged"
    why: str = ""
    step: int | None = None
    total: int | None = None
    tokens: int | None = None
    loss: float | None = None
    reward: float | None = None
    best: float | None = None
    """The best evaluation: mean bits per byte, share of pairs, or score of benchmarks."""
    tokens_per_second: float | None = None
    started: float | None = None
    age_s: float | None = None


def find_runs(roots: Iterable[Path]) -> Iterator[Path]:
    """Directories of runs at or below `roots`; links are not followed, what lies in a run is none.

    Raises `GlmforgeError` if one of `roots` is no directory.
    """
    for root in roots:
        if not root.is_dir():
            raise GlmforgeError(f"{shown(root)}: no such directory; pass one with runs below it")
        yield from _below(root, _MAX_DEPTH)


def _below(root: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            found = list(entries)
    except OSError:
        return
    if _OF_A_RUN & {entry.name for entry in found}:
        yield root
    elif depth:
        for entry in sorted(found, key=lambda one: one.name):
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _below(Path(entry.path), depth - 1)


def read_row(root: Path, *, now: float | None = None) -> RunRow:
    """Never raises for what lies in the directory: `why` says what is damaged."""
    row: dict[str, Any] = {"name": root.absolute().name, "path": str(root)}
    try:
        return RunRow(**row | _read(root, time.time() if now is None else now))
    except (GlmforgeError, OSError, RecursionError) as error:
        return RunRow(**row, why=" ".join(str(error).split()))


def select(
    rows: Iterable[RunRow], *, states: Sequence[str], stages: Sequence[str], names: Sequence[str]
) -> list[RunRow]:
    """Those that have one of each; an empty list asks for nothing. Names are patterns."""
    return [
        row
        for row in rows
        if (not states or row.state in states)
        and (not stages or row.stage in stages)
        and (not names or any(fnmatch.fnmatchcase(row.name, name) for name in names))
    ]


def ordered(rows: Iterable[RunRow], column: str, *, reverse: bool = False) -> list[RunRow]:
    """By a field; those without a value, or with one that is not a number, come last."""

    def value(row: RunRow) -> Any:
        found = getattr(row, column)
        return None if isinstance(found, float) and math.isnan(found) else found

    rows = list(rows)
    known = [row for row in rows if value(row) is not None]
    return sorted(known, key=value, reverse=reverse) + [row for row in rows if value(row) is None]


def as_dict(row: RunRow) -> dict[str, Any]:
    """For programs: numbers that JSON has not are None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(row).items()
    }


def _read(root: Path, now: float) -> dict[str, Any]:
    directory, state = RunDirectory(root), state_of(root, now=now)
    last = newest(directory.metrics, "step")
    losses = (number(last.get(name)) for name in ("loss", "pair_loss"))
    step, tokens = (value if isinstance(value := last.get(name), int) else None for name in ("step", "tokens"))
    total, stage = planned_steps(root)
    return {
        "stage": stage,
        "state": state.state.value,
        "why": state.why,
        "step": step,
        "total": total,
        "tokens": tokens,
        "loss": next((value for value in losses if value is not None), None),
        "reward": number(last.get("reward")),
        "best": _best(directory),
        "tokens_per_second": number(last.get("tokens_per_second")),
        "started": _started(directory),
        "age_s": state.silent_s,
    }


def _best(directory: RunDirectory) -> float | None:
    """Over all evaluations at the files' ends, which are short; means over the sources of each."""
    for path in (directory.evaluation, directory.benchmarks):
        found: dict[str, dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
        with suppress(GlmforgeError):
            for line in read_end(path, error=RunFileError, max_bytes=MAX_BYTES).splitlines() if path.exists() else ():
                record = decode_line(line) or {}
                for name in _SCORES:
                    if (value := number(record.get(name))) is not None and math.isfinite(value):
                        found[name][str(record.get("step"))].append(value)
        for name, pick in _SCORES.items():
            if found[name]:
                return float(pick(fmean(values) for values in found[name].values()))
    return None


def _started(directory: RunDirectory) -> float | None:
    """The first line of the events."""
    with suppress(OSError), open_regular(directory.events) as file:
        return time_of(decode_line(file.readline(MAX_BYTES)) or {})
    return None
