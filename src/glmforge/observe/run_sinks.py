"""Where a run's records go: its files, and the line a person watches; TensorBoard, trackers and the exporter have
modules of their own.

Another place (a database, a push gateway) is a class with the methods of `glmforge.observe.bus.Sink`, and a line in
`run_sinks`, which wraps it in `Background` if it may be slow.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES
from glmforge.observe.background import Background
from glmforge.observe.bus import Kind, Sink
from glmforge.observe.metric_table import MetricTable
from glmforge.observe.metrics import Record
from glmforge.observe.progress import TrainingProgress
from glmforge.observe.prometheus import ExportedRun, Prometheus
from glmforge.observe.record_files import JsonlFile
from glmforge.observe.run import RunDirectory, event_record
from glmforge.observe.tensorboard import TensorBoard
from glmforge.observe.tracking_process import TrackingProcess
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.lease import LeaseLostError

logger = logging.getLogger(__name__)


def run_sinks(
    config: RunConfig,
    total: tuple[int, int | None] | None,
    layout: Layout | None = None,
    launch: LaunchEnvironment | None = None,
) -> list[Sink]:
    """The sinks that `config` asks for, not open yet; ranks other than 0 write nothing and may be scraped.

    Args:
        total: steps and tokens of the whole run, None if they are not known; tokens alone may be None.
        layout: of the run; a single rank if not given.
        launch: the process among the run's; rank 0 if not given.
    """
    launch = launch or LaunchEnvironment()
    if launch.rank:
        return _exporters(config, total, layout, launch)
    directory, observe = RunDirectory(config.output_dir), config.observe
    answers = observe.evaluate_every if STAGES[config.stage].answers_held_out else None
    asked = {
        Kind.METRICS: True,
        Kind.EVALUATION: None if answers else observe.evaluate_every,
        Kind.SAMPLE: observe.samples,
        Kind.NEEDLES: observe.needles,
        Kind.BENCHMARK: observe.benchmarks or answers,
    }
    kinds = [kind for kind, settings in asked.items() if settings is not None]
    sinks: list[Sink] = [RunFiles(directory, kinds)]
    sinks += _exporters(config, total, layout, launch, tell=sinks[0].write)  # before threads begin to work
    if observe.tensorboard:
        sinks.append(Background(TensorBoard(directory.tensorboard, kinds)))
    if observe.tracking and observe.tracking.mode != "disabled":
        settings = config.model_dump(mode="json")
        sinks.append(Background(TrackingProcess(observe.tracking, directory.root, config.name, settings)))
    if observe.progress:
        sinks.append(ProgressLine(total))
    return sinks


def _exporters(
    config: RunConfig,
    total: tuple[int, int | None] | None,
    layout: Layout | None,
    launch: LaunchEnvironment,
    tell: Callable[[Kind, Record], None] = lambda kind, record: None,
) -> list[Sink]:
    settings = config.observe.prometheus
    if settings is None or (launch.rank and settings.ranks == "first"):
        return []
    steps = total[0] if total else None
    run = ExportedRun(config.name, config.stage, layout or Layout(), launch.rank, launch.local_rank, steps)
    return [Prometheus(settings, RunDirectory(config.output_dir).exporter, run, tell)]


@dataclass
class _Lost:
    """Records that a file has missed, since which step and why."""

    number: int
    step: int
    reason: str


class RunFiles:
    """The JSONL files of a run directory.

    Metrics, evaluations, samples, needles and benchmarks tell one story: those of steps that are trained again go.
    Events and anomalies tell what happened, and stay.

    Records are written by the thread that trains, one system call each: a process that is killed loses none. A file
    that cannot be written (a full disk) misses records, and the run goes on: a warning and, where that can be written,
    an event say so at the first one, and again, with their number, when the file is written again.
    """

    name = "the run's files"

    def __init__(self, directory: RunDirectory, kinds: Collection[Kind] = (Kind.METRICS,)) -> None:
        paths = {
            Kind.METRICS: directory.metrics,
            Kind.EVALUATION: directory.evaluation,
            Kind.SAMPLE: directory.samples,
            Kind.NEEDLES: directory.needles,
            Kind.BENCHMARK: directory.benchmarks,
        }
        self._paths = {kind: path for kind, path in paths.items() if kind in kinds}
        self._lasting = {Kind.EVENT: directory.events, Kind.ANOMALY: directory.anomalies}
        self._open: dict[Kind, JsonlFile] = {}
        self._lost: dict[Path, _Lost] = {}

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self.close()
        for kind, path in self._paths.items():
            self._open[kind] = JsonlFile(path, resume_step=step)

    def write(self, kind: Kind, record: Record) -> None:
        path = self._lasting.get(kind) or self._paths.get(kind)
        if path is None:
            return
        try:
            self._append(kind, record)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - the disk, or a record that JSON cannot hold: neither ends a run
            self._lose(path, record, error)
        else:
            if path in self._lost:
                self._tell_lost(path, record)

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def _append(self, kind: Kind, record: Record) -> None:
        if kind in self._lasting:
            with JsonlFile(self._lasting[kind]) as file:
                file.write(record)
        else:
            self._open[kind].write(record)

    def _lose(self, path: Path, record: Record, error: Exception) -> None:
        if path in self._lost:
            self._lost[path].number += 1
            return
        lost = self._lost[path] = _Lost(1, record.get("step", 0), " ".join(str(error).split()))
        logger.warning("%s; training continues, and records are dropped until it recovers", lost.reason)
        if path != self._lasting[Kind.EVENT]:
            self.write(Kind.EVENT, event_record("records missing", step=lost.step, detail=lost.reason))

    def _tell_lost(self, path: Path, record: Record) -> None:
        lost = self._lost.pop(path)
        detail = f"{path.name} lost {lost.number} records, from step {lost.step} on: {lost.reason}"
        logger.warning("%s is writable again; %s", path, detail)
        self.write(Kind.EVENT, event_record("records written again", step=record.get("step", 0), detail=detail))


class ProgressLine:
    """The progress bar; see `glmforge.observe.progress`."""

    name = "the progress line"

    def __init__(self, total: tuple[int, int | None] | None) -> None:
        self._total = total
        self._progress: TrainingProgress | None = None

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self.close()
        self._progress = TrainingProgress(*(self._total or (None, None)), start_steps=step, start_tokens=tokens)
        self._progress.__enter__()

    def write(self, kind: Kind, record: Record) -> None:
        if self._progress is None:
            return
        if kind is Kind.METRICS:
            self._progress.update(record)
        elif kind is Kind.NOTE:
            self._progress.note(record["message"])
        elif kind is Kind.BENCHMARK:
            self._progress.note(_score_line(record))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)


def _score_line(record: Record) -> str:
    """A benchmark's score with its interval, if it has one."""
    low, high = record.get("benchmark_low"), record.get("benchmark_high")
    interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
    return f"step {record['step']} · {record['benchmark']} {record['benchmark_score']:.3f}{interval}"
