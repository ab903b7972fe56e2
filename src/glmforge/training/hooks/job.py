"""Where the time of a run goes, written down while it goes.

Of each step: the wait for its batch, the step itself, what comes behind it up to the evaluation, and what comes last,
which is saving. Added up over a second, and over more the longer the process lasts, so that neither a small model nor a
long run writes many lines; the end of a process that is killed is as long as that unknown. Only the rank that writes
the run's records does it.

The first record of metrics tells besides what its job had cost until then, as its supervisor had added it up.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.errors import GlmforgeError
from glmforge.files import read_json
from glmforge.observe.job import JobOfRun, time_line
from glmforge.observe.metrics import METRICS, Record
from glmforge.observe.record_files import JsonlFile, RunFileError
from glmforge.observe.run import RunDirectory
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

GOODPUT = "goodput.json"
"""What the supervisor writes into the job's directory before it starts an attempt."""

_LEAST_S, _MOST_S = 1.0, 30.0
_SHARE = 0.01
"""Between two lines: of the attempt's age, within these bounds."""
_PARTS = ("training_s", "data_s", "evaluation_s", "saving_s")


class JobHook(Hook):
    """Appends to the run's `time.jsonl`; see `glmforge.observe.job`. Priority: after evaluations, before saves."""

    name = "job"
    priority = Priority.USER

    def __init__(self, run: Path, job: JobOfRun | None = None) -> None:
        self._run, self._job = run, job
        self._told = False
        self._file: JsonlFile | None = None
        self._is_missing = False
        self._started = time.monotonic()
        self._began: float | None = None
        self._ended: float | None = None
        self._step = 0
        self._evaluated = False
        self._since = time.monotonic()
        self._steps = 0
        self._seconds = dict.fromkeys(_PARTS, 0.0)

    def on_train_start(self, trainer: Trainer) -> None:
        self._reset(time.monotonic())
        self._ended = None
        if trainer.world.is_main:
            self._file = JsonlFile(RunDirectory(self._run).time)
            self._append(event="loaded", step=trainer.state.step)

    def on_step_start(self, trainer: Trainer) -> None:
        self._began = time.monotonic()

    def on_evaluation(self, trainer: Trainer, records: Sequence[Record]) -> None:
        self._evaluated = True

    def on_benchmarks(self, trainer: Trainer, records: Sequence[Record]) -> None:
        self._evaluated = True

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        now = time.monotonic()
        assert self._began is not None, "a step has been started"
        if self._ended is not None:
            self._seconds["saving_s"] += max(0.0, self._began - result.data_seconds - self._ended)
        self._seconds["data_s"] += result.data_seconds
        self._seconds["training_s"] += result.seconds - result.data_seconds
        if self._evaluated:
            self._seconds["evaluation_s"] += max(0.0, now - self._began - (result.seconds - result.data_seconds))
        self._evaluated = False
        self._steps, self._step = self._steps + 1, trainer.state.step
        self._ended = now
        every = min(_MOST_S, max(_LEAST_S, _SHARE * (now - self._started)))
        if now - self._since >= every or trainer.state.is_done:
            self._write(now)

    def on_record(self, trainer: Trainer, result: StepResult) -> None:
        if not self._told and trainer.world.is_main:
            trainer.record(**self._goodput_before())
        self._told = True

    def on_rollback(self, trainer: Trainer) -> None:
        self._write(time.monotonic())
        self._ended = None

    def close(self) -> None:
        if self._file is not None:
            self._write(time.monotonic())
            self._file.close()
            self._file = None

    def _write(self, now: float) -> None:
        if self._file is not None and self._steps:
            parts = {name: round(seconds, 6) for name, seconds in self._seconds.items() if seconds}
            self._append(step=self._step, steps=self._steps, **parts)
        self._reset(now)

    def _append(self, **facts: object) -> None:
        """A line that cannot be written (a full disk) is missing, and the run goes on."""
        assert self._file is not None, "called on the writing rank only"
        try:
            self._file.write(time_line(self._job, **facts))
        except RunFileError as error:
            if not self._is_missing:
                logger.warning("%s; training continues, and lines are dropped until it recovers", error)
            self._is_missing = True

    def _reset(self, now: float) -> None:
        self._since, self._steps = now, 0
        self._seconds = dict.fromkeys(_PARTS, 0.0)

    def _goodput_before(self) -> dict[str, Any]:
        """Metrics of the job until this attempt; empty if not written."""
        if self._job is None or self._job.directory is None:
            return {}
        try:
            stored: dict[str, Any] = read_json(self._job.directory / GOODPUT, dict, error=GlmforgeError)
            metrics = stored.get("metrics", {})
            known = METRICS.record({name: metrics[name] for name in metrics if METRICS[name].group == "job"})
        except (GlmforgeError, KeyError, TypeError, AttributeError, ValueError):
            return {}
        return known
