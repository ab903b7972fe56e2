"""The directory of a run: what lies where, how it begins, and how it is read back.

    config.yaml        the effective configuration
    adapters.json      of a run with adapters: what is trained, parameter by parameter
    deepspeed.json     of a run with backend: deepspeed: what its engine was given, and where from
    tokenizer/         a copy of the tokenizer, so that the directory can be moved and talked to from anywhere
    run.json           name, code revision, library versions, machine, start
    metrics.jsonl      one record per logging step
    evaluation.jsonl   per evaluation and source one record of loss and accuracy, and one of answers to its prompts
    samples.jsonl      texts that the model wrote at evaluations
    needles.jsonl      what it retrieved from long texts at evaluations
    benchmarks.jsonl   its scores on benchmarks in the course of training
    rollouts/          step-*, the answers that each step of stage rl was trained on
    evaluations/       step-*, results of `glmforge evaluate --watch`, if they are written here
    safety/            the result of `glmforge evaluate safety`, if it is written here
    events.jsonl       what happened to the run: started, resumed, killed, rolled back
    time.jsonl         where its time went
    anomalies.jsonl    steps with an unusual loss or gradient, and the samples they saw
    skipped.json       samples that are omitted since a loss spike
    reference.npz      of a run of stage dpo: what the model it began with said of each answer
    control            a command to the live run, until it is taken
    hangs/             what each rank was doing when the run hung
    logs/              log messages of each rank, with observe.logs
    profile/           step-*, traces of steps that were profiled
    tracking.json      the run of an experiment tracker that this one is (observe.tracking); wandb/, its files
    exporter/          rank-*, where Prometheus finds the processes of a live run (observe.prometheus)
    .lock/             who writes here: see glmforge.runtime.lease
    checkpoints/       step-*, one directory per checkpoint; a link if they lie apart (checkpoint.dir)
    tensorboard/       a view of the metrics; a link if they lie apart (observe.tensorboard_dir)
    report.html        the report

`run.json` tells the first start. A later start appends a `resumed` event saying what differs from it (another
torch, another machine, another revision), which is where one looks first when a resumed loss is not the
expected one.
"""

import itertools
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from glmforge.files import open_regular
from glmforge.observe.environment import describe_machine, git_revision, library_versions
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import JsonlFile, RunFileError, read_jsonl
from glmforge.runtime.lease import ensure_writable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunDirectory:
    """Names of a run's files."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def adapters(self) -> Path:
        return self.root / "adapters.json"

    @property
    def deepspeed(self) -> Path:
        return self.root / "deepspeed.json"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    @property
    def reference(self) -> Path:
        return self.root / "reference.npz"

    @property
    def info(self) -> Path:
        return self.root / "run.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def evaluation(self) -> Path:
        return self.root / "evaluation.jsonl"

    @property
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def needles(self) -> Path:
        return self.root / "needles.jsonl"

    @property
    def benchmarks(self) -> Path:
        return self.root / "benchmarks.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.root / "rollouts"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def time(self) -> Path:
        return self.root / "time.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def anomalies(self) -> Path:
        return self.root / "anomalies.jsonl"

    @property
    def skipped(self) -> Path:
        return self.root / "skipped.json"

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def hangs(self) -> Path:
        return self.root / "hangs"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def alive(self) -> Path:
        return self.root / "alive"

    @property
    def profile(self) -> Path:
        return self.root / "profile"

    @property
    def exporter(self) -> Path:
        return self.root / "exporter"

    @property
    def report(self) -> Path:
        return self.root / "report.html"


@dataclass(frozen=True)
class RunLog:
    """All that a run has recorded: at least one record of metrics; the others may be empty."""

    directory: RunDirectory
    info: dict[str, Any]
    config_text: str
    config: dict[str, Any]
    metrics: list[Record]
    evaluations: list[Record]
    events: list[Record]
    samples: list[Record] = field(default_factory=list)
    needles: list[Record] = field(default_factory=list)
    benchmarks: list[Record] = field(default_factory=list)


def record_start(
    root: str | os.PathLike[str], *, name: str, step: int, facts: Mapping[str, object] | None = None
) -> None:
    """Write `run.json` and a `started` event; on a later start a `resumed` event with what has changed since.

    A `run.json` that is damaged is no reason not to start: it is kept under another name and written again.

    Args:
        root: the run directory; made if missing.
        name: the run's name.
        step: optimizer steps done so far; 0 for a new run.
        facts: for programs, in the event.
    """
    directory = RunDirectory(Path(root))
    present = {
        "name": name,
        "started": _utc_now(),
        "git_revision": git_revision(Path(__file__).parent),
        "versions": library_versions(),
        "machine": describe_machine(),
    }
    info = json.dumps(present, indent=2, ensure_ascii=False) + "\n"
    if not directory.info.exists():
        write_text(directory.info, info)
        record_event(root, "started", step=step, facts=facts)
        return
    try:
        changes = _differences(_read_info(directory.info), present)
        detail = "; ".join(changes) or "same code, libraries and machine"
    except RunFileError as error:
        aside = _set_aside(directory.info)
        write_text(directory.info, info)
        detail = f"{directory.info.name} was damaged and is rewritten; the damaged file is kept as {aside.name}"
        logger.warning("%s; it is rewritten, the damaged file is kept as %s", error, aside)
    record_event(root, "resumed", step=step, detail=detail, facts=facts)


def record_event(
    root: str | os.PathLike[str], event: str, *, step: int, detail: str = "", facts: Mapping[str, object] | None = None
) -> None:
    """Append a line to `events.jsonl`: what happened to the run after which step. (Hooks call `trainer.event`.)

    `facts` are for programs what `detail` tells people.
    """
    with JsonlFile(RunDirectory(Path(root)).events) as file:
        file.write(event_record(event, step=step, detail=detail) | dict(facts or {}))


def event_record(event: str, *, step: int, detail: str = "") -> Record:
    """An event that happens now. Time is UTC, ISO 8601."""
    return {"time": _utc_now(), "step": step, "event": event, "detail": detail}


def read_run(root: str | os.PathLike[str]) -> RunLog:
    """Read a run directory.

    Raises:
        RunFileError: config.yaml, run.json or metrics.jsonl is missing, damaged or without a record.
    """
    directory = RunDirectory(Path(root))
    config_text = _read_text(directory.config)
    metrics = read_jsonl(directory.metrics)
    if not metrics:
        raise RunFileError(f"{directory.metrics}: no steps recorded yet; train at least one logging step")
    return RunLog(
        directory=directory,
        info=_read_json(directory.info),
        config_text=config_text,
        config=_parse_yaml(directory.config, config_text),
        metrics=metrics,
        evaluations=read_jsonl(directory.evaluation) if directory.evaluation.exists() else [],
        events=read_jsonl(directory.events) if directory.events.exists() else [],
        samples=read_jsonl(directory.samples) if directory.samples.exists() else [],
        needles=read_jsonl(directory.needles) if directory.needles.exists() else [],
        benchmarks=read_jsonl(directory.benchmarks) if directory.benchmarks.exists() else [],
    )


def write_text(path: Path, text: str) -> None:
    """Write a file, making its folder; a reader finds the old text or the new one, never half of it."""
    ensure_writable(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(partial, "wb") as file:
            file.write(text.encode())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunFileError(f"{path}: cannot be written ({error.strerror}); free space or permissions") from error


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """'torch 2.12.0 -> 2.13.0' for each leaf that differs, times of start aside."""
    old, new = _leaves(before), _leaves(now)
    return [f"{key} {old.get(key)} -> {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)]


def _leaves(info: Mapping[str, Any]) -> dict[str, Any]:
    groups = [info, info.get("versions", {}), info.get("machine", {})]
    return {
        key: value for group in groups for key, value in group.items() if key not in {"started", "versions", "machine"}
    }


def _read_info(path: Path) -> dict[str, Any]:
    """`run.json` with the groups that `_leaves` reads. Raises `RunFileError` if it is damaged."""
    info = _read_json(path)
    for group in ("versions", "machine"):
        if not isinstance(info.get(group, {}), dict):
            raise RunFileError(f"{path}: {group} is not a mapping; restore it, or start the run again")
    return info


def _set_aside(path: Path) -> Path:
    """Give a damaged file another name, under which none lies yet."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
    aside = next(name for name in names if not name.exists())
    try:
        path.rename(aside)
    except OSError as error:
        raise RunFileError(f"{path}: is damaged and cannot be renamed ({error.strerror}); move it away") from error
    return aside


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RunFileError(f"{path}: no such file; pass the directory of a run that has trained") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{path}: is not text in UTF-8 ({error.reason}); restore it") from error
    except OSError as error:
        raise RunFileError(f"{path}: cannot be read ({error.strerror})") from error


def _read_json(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFileError(
            f"{path}: is not JSON ({error}); restore it, or delete it and start the run again"
        ) from error
    return _mapping(path, content)


def _parse_yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise RunFileError(f"{path}: is not YAML ({reason}); restore the run's effective configuration") from error
    return _mapping(path, content)


def _mapping(path: Path, content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise RunFileError(f"{path}: is not a mapping; restore the run's file")
    return content
