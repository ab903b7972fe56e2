"""What a run's directory says of its state, from the ends of its files: as fast for a long run as for a short one.

A run ends with an event (finished, stopped, preempted, a hang), or without one if it failed. Then the claim on its
directory (`glmforge.runtime.lease`) tells whether its process lives, and its files for how long it has been silent.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from glmforge.config.tree import parse, quick_value, to_value
from glmforge.errors import GlmforgeError
from glmforge.files import read_text, shown
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import newest_records
from glmforge.observe.run import RunDirectory
from glmforge.runtime.lease import newest_claim
from glmforge.runtime.process import is_alive

SILENT_S = 120.0
"""Without a record, an event or a mark of slow work for so long, a run that has not ended is called silent."""

_DECISIVE = {"started", "resumed", "finished", "stopped", "preempted", "hang", "killed"}


class State(StrEnum):
    WAITING = "waiting"  # has not started
    RUNNING = "running"
    SILENT = "silent"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (State.FINISHED, State.STOPPED, State.FAILED)


@dataclass(frozen=True)
class RunState:
    """`silent_s` is since any of its files last changed, None if there is none; `why` may be empty."""

    state: State
    why: str = ""
    silent_s: float | None = None


def state_of(root: Path, *, now: float | None = None) -> RunState:
    """Of the run in `root`, at `now` (seconds since 1970). Raises `GlmforgeError` if its events cannot be read."""
    directory = RunDirectory(root)
    silent = _silent_s(directory, time.time() if now is None else now)
    event = next((one for one in newest_records(directory.events, *_DECISIVE) if one.get("event") in _DECISIVE), None)
    if event is None:
        return RunState(State.WAITING, "", silent)
    name, detail = str(event["event"]), str(event.get("detail") or "")
    if name == "finished":
        return RunState(State.FINISHED, "", silent)
    if name in ("stopped", "preempted"):
        return RunState(State.STOPPED, detail if name == "stopped" else f"preempted: {detail}", silent)
    if name in ("hang", "killed"):
        return RunState(State.FAILED, ": ".join(filter(None, [name, detail])), silent)
    claim = newest_claim(root)
    if claim is not None and claim.released:
        return RunState(State.FAILED, "ended with an error", silent)
    if claim is not None and is_alive(claim.holder) is False:
        return RunState(State.FAILED, "its process was killed", silent)
    return RunState(State.RUNNING if silent is not None and silent < SILENT_S else State.SILENT, "", silent)


def newest(path: Path, name: str) -> Record:
    """The newest record with this name at the end of a file; {} if there is none, or the file is damaged."""
    with suppress(GlmforgeError):
        return next((record for record in newest_records(path, name) if name in record), {})
    return {}


def planned_steps(root: Path) -> tuple[int | None, str]:
    """Steps of all phases, where they can be told without reading the data, and the stage of the run.

    Raises `GlmforgeError` if the configuration cannot be read.
    """
    path = RunDirectory(root).config
    text = read_text(path, error=GlmforgeError)
    config = quick_value(text) or to_value(parse(text, str(path)))
    if not isinstance(config, dict):
        raise GlmforgeError(f"{shown(path)}: is not a run's configuration; restore it")
    phases, stage = config.get("phases"), str(config.get("stage", "pretrain"))
    steps = [_steps(phase) for phase in phases] if isinstance(phases, list) else []
    known = [number for number in steps if number is not None]
    return sum(known) if known and len(known) == len(steps) else None, stage


def time_of(record: Record) -> float | None:
    """When a record was written, in seconds since 1970."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(record.get("time"))).timestamp()
    return None


def number(value: object) -> float | None:
    """A number from a file, or None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _steps(phase: Any) -> int | None:
    """A phase by tokens has as many steps as its batches take, if they do not grow."""
    if not isinstance(phase, dict):
        return None
    if isinstance(phase.get("steps"), int):
        return int(phase["steps"])
    tokens, size, length = (phase.get(name) for name in ("tokens", "batch_size", "seq_len"))
    if phase.get("batch_ramp") is None and all(isinstance(one, int) and one > 0 for one in (tokens, size, length)):
        return -(-int(tokens or 0) // (int(size or 1) * int(length or 1)))
    return None


def _silent_s(directory: RunDirectory, now: float) -> float | None:
    changes = list(_changes(directory))
    return max(0.0, now - max(changes)) if changes else None


def _changes(directory: RunDirectory) -> Iterator[float]:
    for path in (directory.metrics, directory.events, directory.time, directory.alive, directory.evaluation):
        with suppress(OSError):
            yield path.stat().st_mtime
