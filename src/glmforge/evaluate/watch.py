"""Evaluate the checkpoints of a run as they appear, in a process or job of its own, until the run has ended.

Each result is a directory `step-N`. Checkpoints with a result are skipped, and a stopped evaluation of one resumes.
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

Evaluate = Callable[[Path, Path], None]  # takes a checkpoint and the directory of its result


def watch(
    run: Path,
    out: Path,
    settings: Mapping[str, Any],
    evaluate: Evaluate,
    *,
    once: bool = False,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Call `evaluate` for each whole lasting checkpoint of `run` without a result in `out`; returns their number.

    Args:
        settings: as `evaluate.run.settings_of` gives them; results of others are refused.
        once: end when all checkpoints that are there now are evaluated.

    Raises:
        GlmforgeError: `run` is not a run.
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
        if (new := _next(directory, out, settings)) is not None:
            num_done += _evaluated(new, _result_of(new, out), evaluate)
        elif once or (ended and had_ended):  # looked at twice: the last checkpoint may appear after the event
            return num_done
        else:
            wait(POLL_S)
        had_ended = ended


def _result_of(checkpoint: Path, out: Path) -> Path:
    return out / f"step-{step_of(checkpoint)}"


def _next(run: RunDirectory, out: Path, settings: Mapping[str, Any]) -> Path | None:
    """The oldest checkpoint without a result."""
    for path in reversed(list_checkpoints(run.checkpoints)):
        result = _result_of(path, out)
        if kind_of(result / RESULT, error=DataError) == "file":
            if read_result(result).settings != json.loads(json.dumps(settings)):
                raise DataError(f"{result}: is of other benchmarks or settings; give another --out")
        elif not find_problems(path, checksums=False) and not read_meta(path).ephemeral:
            return path
    return None


def _evaluated(checkpoint: Path, result: Path, evaluate: Evaluate) -> bool:
    try:
        evaluate(checkpoint, result)
    except (CheckpointError, OSError):
        if checkpoint.exists():
            raise
        return False  # the run has deleted it meanwhile
    return True


def _has_ended(run: RunDirectory) -> bool:
    events = [event.get("event") for event in read_jsonl(run.events)] if run.events.exists() else []
    return next((event in _ENDS for event in reversed(events) if event in (*_ENDS, *_BEGINS)), False)
