"""Evaluate the checkpoints of a run as they appear, in a process or job of its own, until the run has ended.

Each result is a directory `step-N`. What is evaluated already is passed over, so it may be stopped and started again,
and what was stopped in the middle of a checkpoint resumes there.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glmforge.checkpoint.format.manifest import find_problems
from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.format.store import list_checkpoints, step_of
from glmforge.errors import CheckpointError, DataError, GlmforgeError
from glmforge.evaluate.result import RESULT, read_result
from glmforge.files import kind_of, shown
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory

POLL_S = 20.0
_ENDS, _BEGINS = ("finished", "stopped"), ("started", "resumed")

Evaluate = Callable[[Path, Path], None]
"""Takes a checkpoint and the directory of its result."""


def watch(
    run: Path,
    out: Path,
    settings: Mapping[str, Any],
    evaluate: Evaluate,
    *,
    once: bool = False,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Call `evaluate` for each whole lasting checkpoint of `run` that `out` has no result of; how many there were.

    Args:
        settings: as `evaluate.run.settings_of` gives them; results of others are refused.
        once: end when all that are there now are evaluated.

    Raises:
        GlmforgeError: `run` is none.
        DataError: `out` has results of other settings.
    """
    directory = RunDirectory(run)
    if kind_of(directory.config, error=GlmforgeError) != "file":
        raise GlmforgeError(
            f"{shown(run)}: not a run (no {directory.config.name}); --watch follows the directory of a run"
        )
    num_done, had_ended = 0, False
    while True:
        ended = once or _has_ended(directory)
        new = _next(directory, out, settings)
        if new is not None:
            num_done += _evaluated(new, out, evaluate)
        elif once or (ended and had_ended):  # looked at twice: the last checkpoint may appear behind the event
            return num_done
        else:
            wait(POLL_S)
        had_ended = ended


def result_of(out: Path, step: int) -> Path:
    return out / f"step-{step}"


def _next(run: RunDirectory, out: Path, settings: Mapping[str, Any]) -> Path | None:
    """The oldest checkpoint without a result."""
    for path in reversed(list_checkpoints(run.checkpoints)):
        result = result_of(out, step_of(path))
        if kind_of(result / RESULT, error=DataError) == "file":
            if read_result(result).settings != json.loads(json.dumps(settings)):
                raise DataError(f"{result}: is of other benchmarks or settings; give another --out")
        elif not find_problems(path, checksums=False) and not read_meta(path).ephemeral:
            return path
    return None


def _evaluated(checkpoint: Path, out: Path, evaluate: Evaluate) -> bool:
    try:
        evaluate(checkpoint, result_of(out, step_of(checkpoint)))
    except (CheckpointError, OSError):
        if checkpoint.exists():
            raise
        return False  # the run has deleted it meanwhile
    return True


def _has_ended(run: RunDirectory) -> bool:
    events = read_jsonl(run.events) if run.events.exists() else []
    told = [event.get("event") for event in events if event.get("event") in (*_ENDS, *_BEGINS)]
    return bool(told) and told[-1] in _ENDS
