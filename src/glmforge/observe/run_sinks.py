"""Where a run's records go: its files, TensorBoard, and the line a person watches.

Another place (a database, a push gateway) is a class with the methods of `glmforge.observe.bus.Sink`, and a line in
`run_sinks`.
"""

from pathlib import Path

from glmforge.config.schema import RunConfig
from glmforge.observe.bus import Kind, Sink
from glmforge.observe.metrics import Record
from glmforge.observe.progress import TrainingProgress
from glmforge.observe.record_files import JsonlFile, TensorBoardFile
from glmforge.observe.run import RunDirectory


def run_sinks(config: RunConfig, total: tuple[int, int | None] | None) -> list[Sink]:
    """The sinks that `config` asks for, not open yet; for the rank that writes.

    `total` are the steps and tokens of the whole run, None if they are not known; tokens alone may be None.
    """
    directory, observe = RunDirectory(config.output_dir), config.observe
    evaluates = observe.evaluate_every is not None
    needles = observe.needles is not None
    sinks: list[Sink] = [RunFiles(directory, evaluates=evaluates, samples=observe.samples is not None, needles=needles)]
    if observe.tensorboard:
        sinks.append(TensorBoard(directory.tensorboard, evaluates=evaluates, needles=needles))
    if observe.progress:
        sinks.append(ProgressLine(total))
    return sinks


class RunFiles:
    """The JSONL files of a run directory.

    Metrics, evaluations, samples and needles tell one story: those of steps that are trained again go. Events and
    anomalies tell what happened, and stay.
    """

    def __init__(
        self, directory: RunDirectory, *, evaluates: bool, samples: bool = False, needles: bool = False
    ) -> None:
        self._paths = {Kind.METRICS: directory.metrics}
        if evaluates:
            self._paths[Kind.EVALUATION] = directory.evaluation
        if samples:
            self._paths[Kind.SAMPLE] = directory.samples
        if needles:
            self._paths[Kind.NEEDLES] = directory.needles
        self._lasting = {Kind.EVENT: directory.events, Kind.ANOMALY: directory.anomalies}
        self._open: dict[Kind, JsonlFile] = {}

    def open(self, step: int, tokens: int) -> None:
        self.close()
        for kind, path in self._paths.items():
            self._open[kind] = JsonlFile(path, resume_step=step)

    def write(self, kind: Kind, record: Record) -> None:
        if kind in self._lasting:
            with JsonlFile(self._lasting[kind]) as file:
                file.write(record)
        elif kind in self._paths:
            self._open[kind].write(record)

    def close(self) -> None:
        for file in self._open.values():
            file.close()


class TensorBoard:
    """Metrics, evaluations and needles, each in a directory of their own: two writers that resume would hide each
    other's records."""

    def __init__(self, directory: Path, *, evaluates: bool, needles: bool = False) -> None:
        self._directories = {Kind.METRICS: directory}
        if evaluates:
            self._directories[Kind.EVALUATION] = directory / "evaluation"
        if needles:
            self._directories[Kind.NEEDLES] = directory / "needles"
        self._open: dict[Kind, TensorBoardFile] = {}

    def open(self, step: int, tokens: int) -> None:
        self.close()
        for kind, directory in self._directories.items():
            self._open[kind] = TensorBoardFile(directory, resume_step=step)

    def write(self, kind: Kind, record: Record) -> None:
        if kind in self._directories:
            self._open[kind].write(record)

    def close(self) -> None:
        for file in self._open.values():
            file.close()


class ProgressLine:
    """The progress bar; see `glmforge.observe.progress`."""

    def __init__(self, total: tuple[int, int | None] | None) -> None:
        self._total = total
        self._progress: TrainingProgress | None = None

    def open(self, step: int, tokens: int) -> None:
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

    def close(self) -> None:
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
