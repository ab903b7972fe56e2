"""Runs a pipeline to its end, from wherever it stands.

    <output>/
      documents/00000.parquet ...   what came out: one shard per task of the last stage
      held_out/00000.parquet ...    what a stage set aside for evaluation
      jsonl/00000.jsonl.zst ...     the documents as JSON lines, where a stage writes them
      report.json                   what came in, what each stage removed and why
      quarantine.jsonl              every record that could not be read
      pipeline.yaml                 what was run, every option explicit
      .work/00-extract/...          the tasks' own directories (`task.py`), from which a killed run goes on

A step's fingerprint covers the options of its stage and of all before, the names and sizes of the files that they read,
and the revision of the code's results. A finished task with another fingerprint is never silently used, and never
silently discarded either: it may have cost cluster time.
"""

import functools
import glob
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glmforge.config.model import Strict
from glmforge.config.tree import dump
from glmforge.data.files import disk_errors, write_whole
from glmforge.errors import DataError
from glmforge.runtime.lease import Lease
from glmforge_corpus.block import Block
from glmforge_corpus.pipeline.execution import Executor
from glmforge_corpus.pipeline.executors import make_executor
from glmforge_corpus.pipeline.pipeline import Pipeline, dump_pipeline, dump_stage
from glmforge_corpus.pipeline.settings import ExecutorSettings
from glmforge_corpus.pipeline.stage import DOCUMENTS, HELD_OUT, JSONL, QUARANTINE, REPORT, Stage, StageContext
from glmforge_corpus.pipeline.statistics import Flow, Statistics, dump_json
from glmforge_corpus.pipeline.task import DONE, PlannedStep, remove_partial

_log = logging.getLogger(__name__)

WORK = ".work"
_HASHED_BYTES = 64 << 20
_FORMAT = 1
_KEPT = {DONE, QUARANTINE, REPORT, HELD_OUT}


@dataclass(frozen=True)
class StepProgress:
    """How far a run is.

    Attributes:
        stage, step: names of the current ones.
        done, total: tasks of the step.
        written: by the tasks that are done of a stage's last step; None of an earlier one.
    """

    stage: str
    step: str
    done: int
    total: int
    written: Flow | None = None


@dataclass(frozen=True)
class _PlannedStage:
    stage: Stage
    steps: tuple[PlannedStep, ...]


def run_pipeline(
    pipeline: Pipeline,
    executor: str = "local",
    *,
    redo: bool = False,
    progress: Callable[[StepProgress], None] | None = None,
) -> dict[str, Any]:
    """Run what is not done yet, and publish documents and report. Run again, it does nothing.

    Args:
        pipeline: what to do.
        executor: name of one of `pipeline.executors`.
        redo: throw away finished tasks that were made with other options or inputs, instead of refusing.
        progress: called as tasks finish.

    Returns:
        The report, as it stands in `report.json`.

    Raises:
        DataError: a task failed, or finished ones were made with other options. What is done stays done.
    """
    work = pipeline.output / WORK
    # What cannot be run is refused before anything is written.
    planned, chosen = _plan(pipeline.stages, work, pipeline.seed), make_executor(executor, pipeline.executors)
    with _only_run(pipeline.output), chosen as running:
        _check(planned, work, redo)
        _forget_damaged(planned, released=not pipeline.keep_intermediate)
        _run(planned, running, work / "logs", progress, release=not pipeline.keep_intermediate)
        return _publish(pipeline, planned)


def run_stages(
    stages: Sequence[Stage],
    directory: Path,
    *,
    shards: Sequence[Path] = (),
    seed: int = 0,
    workers: int = 1,
    redo: bool = False,
    progress: Callable[[StepProgress], None] | None = None,
) -> tuple[list[Path], list[Statistics]]:
    """Stages on their own, for programs: no report, nothing published.

    Args:
        shards: the documents that the first of `stages` reads, unless it reads raw files.
        redo: throw away finished tasks that were made with other options, instead of refusing to run.

    Returns:
        (shards of the last stage, statistics of each stage).
    """
    planned = _plan(stages, directory / WORK, seed, shards)
    executor = make_executor("local", ExecutorSettings.model_validate({"local": {"workers": workers}}))
    with _only_run(directory), executor as running:
        _check(planned, directory / WORK, redo)
        _forget_damaged(planned, released=False)
        _run(planned, running, directory / WORK / "logs", progress)
    return _shards(planned[-1]), [_statistics(stage) for stage in planned]


def _plan(stages: Sequence[Stage], work: Path, seed: int, shards: Sequence[Path] = ()) -> list[_PlannedStage]:
    planned = list[_PlannedStage]()
    fingerprint = _hash([_FORMAT, seed, [_describe_path(path) for path in shards]])
    for number, stage in enumerate(stages):
        stage.check()
        directory = work / f"{number:02d}-{stage.kind}"
        steps = stage.steps(StageContext(directory, tuple(shards), seed))
        fingerprint = _hash([fingerprint, _identity(stage), [[step.name, step.num_tasks] for step in steps]])
        planned.append(_PlannedStage(stage, tuple(PlannedStep(step, directory, fingerprint) for step in steps)))
        shards = _shards(planned[-1])
    return planned


def _shards(planned: _PlannedStage) -> list[Path]:
    last = planned.steps[-1]
    return [last.task_directory(task) / DOCUMENTS for task in range(last.step.num_tasks)]


def _identity(stage: Stage) -> list[Any]:
    """All that the stage's results depend on, besides what comes in."""
    parts: list[Stage | Block] = [stage, *_blocks_of(stage)]
    revisions = [[part.kind, part.revision] for part in parts]
    return [revisions, dump_stage(stage), [_describe_path(path) for path in sorted(set(_paths_in(stage)))]]


def _blocks_of(stage: Stage) -> Iterable[Block]:
    blocks = getattr(stage, "blocks", ())
    return [block for block in blocks if isinstance(block, Block)]


def _paths_in(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Strict):
        for name in type(value).model_fields:
            yield from _paths_in(getattr(value, name))
    elif isinstance(value, dict):
        yield from _paths_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item)


def _describe_path(path: Path) -> list[Any]:
    """What tells a file from another version of it: contents of small ones, names and sizes otherwise."""
    if path.is_dir():
        found = sorted(Path(directory) / name for directory, _, names in os.walk(path) for name in names)
        return [str(path), [[str(file.relative_to(path)), file.stat().st_size] for file in found if file.exists()]]
    if not path.is_file():
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - the pattern may be absolute
        return [str(path), [_describe_path(Path(match)) for match in matches]]
    size = path.stat().st_size
    return [str(path), size, _checksum(path, path.stat().st_mtime_ns) if size <= _HASHED_BYTES else None]


@functools.cache
def _checksum(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _check(planned: Sequence[_PlannedStage], work: Path, redo: bool) -> None:
    """Refuse what was done with other options or by another pipeline, or remove it and all that builds on it."""
    for stage in planned:
        for step in stage.steps:
            remove_partial(step)
    known = {stage.steps[0].directory for stage in planned}
    others = [path for path in sorted(work.glob("[0-9][0-9]-*")) if path not in known]
    if others and not redo:
        raise DataError(
            f"{others[0]}: belongs to another pipeline; choose another output, or discard its work with --redo"
        )
    foreign = [number for number, stage in enumerate(planned) if any(_is_foreign(step) for step in stage.steps)]
    if foreign and not redo:
        raise DataError(
            f"{planned[foreign[0]].steps[0].directory}: was made with other options, inputs or an older glmforge; "
            "restore the old options, choose another output, or repeat it and all later stages with --redo"
        )
    for path in others:
        shutil.rmtree(path)
    if foreign:
        first = foreign[0]
        while first > 0 and not all(shard.exists() for shard in _shards(planned[first - 1])):
            first -= 1  # what it reads has been released
        for stage in planned[first:]:
            shutil.rmtree(stage.steps[0].directory, ignore_errors=True)


def _forget_damaged(planned: Sequence[_PlannedStage], *, released: bool) -> None:
    """Finished tasks whose files are gone or cut off are to be done again; their results will be the same."""
    for number, stage in enumerate(planned):
        for step in stage.steps:
            last = number == len(planned) - 1 and step is stage.steps[-1]
            for task in range(step.step.num_tasks):
                if step.is_done(task) and step.is_damaged(task, released=released and not last):
                    _log.warning("%s: one of its files is damaged or missing; repeating it", step.task_directory(task))
                    shutil.rmtree(step.task_directory(task))


def _is_foreign(step: PlannedStep) -> bool:
    root = step.directory / step.step.name
    if not root.is_dir():
        return False
    tasks = {f"{task:05d}": task for task in range(step.step.num_tasks)}
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries]
    return any(name not in tasks or step.done(tasks[name])["fingerprint"] != step.fingerprint for name in names)


def _run(
    planned: Sequence[_PlannedStage],
    executor: Executor,
    logs: Path,
    progress: Callable[[StepProgress], None] | None,
    *,
    release: bool = False,
) -> None:
    for number, stage in enumerate(planned):
        for step in stage.steps:
            _run_step(stage, step, executor, logs, progress or _ignore)
        if release:
            _release(stage, planned[number - 1] if number else None)


def _run_step(
    stage: _PlannedStage, step: PlannedStep, executor: Executor, logs: Path, progress: Callable[[StepProgress], None]
) -> None:
    total = step.step.num_tasks
    pending = [task for task in range(total) if not step.is_done(task)]
    done = total - len(pending)
    written = Flow() if step is stage.steps[-1] else None

    def tell() -> None:
        progress(StepProgress(stage.stage.kind, step.step.name, done, total, written and replace(written)))

    def count(task: int) -> None:
        if written is not None:
            flow = step.statistics(task).written
            written.add(flow.documents, flow.bytes)

    def task_done(task: int) -> None:
        nonlocal done
        done += 1
        count(task)
        tell()

    for task in set(range(total)).difference(pending):
        count(task)
    tell()
    if pending:
        executor.run(step, pending, _log_dir(logs, step), task_done)


def _ignore(progress: StepProgress) -> None:
    pass


def _release(stage: _PlannedStage, before: _PlannedStage | None) -> None:
    """Remove what only the stage itself needed, and the documents that it read."""
    for step in stage.steps[:-1]:
        for task in range(step.step.num_tasks):
            for path in step.task_directory(task).iterdir():
                if path.name not in _KEPT:
                    path.unlink()
    if before is not None:
        for shard in _shards(before):
            shard.unlink(missing_ok=True)


def _log_dir(logs: Path, step: PlannedStep) -> Path:
    """A fresh directory per launch: an executor's own records of an earlier one mean nothing."""
    attempts = len(list(logs.glob(f"{step.directory.name}-{step.step.name}-*")))
    return logs / f"{step.directory.name}-{step.step.name}-{attempts:03d}"


def _statistics(stage: _PlannedStage) -> Statistics:
    """What a stage did: what its first step read and its last wrote, and the sum of all other counts."""
    total = Statistics()
    for number, step in enumerate(stage.steps):
        for task in range(step.step.num_tasks):
            statistics = step.statistics(task)
            if number < len(stage.steps) - 1:
                _forget_flow(statistics)
            total.merge(statistics)
    return total


def _forget_flow(statistics: Statistics) -> None:
    """Documents flow in and out of a stage once, however many inner steps it has."""
    statistics.read, statistics.written = type(statistics.read)(), type(statistics.written)()
    statistics.languages, statistics.sources, statistics.scores = {}, {}, {}
    statistics.lengths.clear()


def _publish(pipeline: Pipeline, planned: Sequence[_PlannedStage]) -> dict[str, Any]:
    report = {
        "name": pipeline.name,
        "pipeline": dump_pipeline(pipeline),
        "stages": [
            {
                "kind": stage.stage.kind,
                "description": stage.stage.describe(),
                "directory": stage.steps[0].directory.name,
                "statistics": _statistics(stage).to_json(),
                "details": _details(stage),
            }
            for stage in planned
        ],
    }
    _publish_documents(_shards(planned[-1]), pipeline.output / "documents")
    held_out = list(_task_files(planned, HELD_OUT))
    if held_out:
        _publish_documents(held_out, pipeline.output / "held_out")
    as_json = [path for suffix in ("", ".gz", ".zst") for path in _task_files(planned, JSONL + suffix)]
    if as_json:
        _publish_documents(as_json, pipeline.output / "jsonl")
    write_whole(
        pipeline.output / "quarantine.jsonl", b"".join(path.read_bytes() for path in _task_files(planned, QUARANTINE))
    )
    write_whole(pipeline.output / "pipeline.yaml", dump(dump_pipeline(pipeline)).encode())
    write_whole(pipeline.output / "report.json", dump_json(report))
    return report


def _details(stage: _PlannedStage) -> list[Any]:
    """What tasks had to say beyond counts."""
    return [json.loads(path.read_bytes()) for path in _task_files([stage], REPORT)]


def _task_files(planned: Sequence[_PlannedStage], name: str) -> Iterator[Path]:
    for stage in planned:
        for step in stage.steps:
            for task in range(step.step.num_tasks):
                path = step.task_directory(task) / name
                if path.is_file():
                    yield path


def _publish_documents(shards: Sequence[Path], final: Path) -> None:
    """The last stage's shards under plain names."""
    publish_files([(shard, f"{number:05d}{''.join(shard.suffixes)}") for number, shard in enumerate(shards)], final)


def publish_files(files: Sequence[tuple[Path, str]], final: Path) -> None:
    """Files under new names in a directory that appears whole; hard links where the file system has them."""
    partial = final.with_name(final.name + ".partial")
    with disk_errors(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path, name in files:
            try:
                os.link(path, partial / name)
            except OSError:
                shutil.copyfile(path, partial / name)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)


def _only_run(output: Path) -> Lease:
    """One run at a time works in a directory, on whichever machine. A lock that a killed run held is free."""
    return Lease(output / WORK, "glmforge data")
