"""One task, done once: its directory appears whole or not at all.

A task writes into a directory beside its final one. When it returns, its files are flushed, `done.json` is written
with their sizes and checksums, what was counted and a fingerprint of everything that the result depends on, and the
directory takes its final name. The name is the completion marker: a task that is killed has none, so it is done
again from the beginning, and a task that has one is never done again.
"""

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from glmforge.data.files import disk_errors
from glmforge.errors import DataError
from glmforge.runtime.durable import fsync_directory, fsync_file
from glmforge_corpus.pipeline.stage import WORKING_ON, Step, TaskOutput, task_directory
from glmforge_corpus.pipeline.statistics import Statistics, dump_json

DONE = "done.json"


@dataclass(frozen=True)
class PlannedStep:
    """A step at its place in a run.

    Attributes:
        step: what to do.
        directory: its stage's.
        fingerprint: of the options and inputs that its results depend on.
        lost: task -> parts of it that killed its process, and how; they are put aside instead of being read.
    """

    step: Step
    directory: Path
    fingerprint: str
    lost: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def task_directory(self, task: int) -> Path:
        return task_directory(self.directory, self.step.name, task)

    def is_done(self, task: int) -> bool:
        """Whether the task's result exists, for any options it was made with."""
        return (self.task_directory(task) / DONE).is_file()

    def done(self, task: int) -> dict[str, Any]:
        """What is recorded of a finished task: files, statistics, fingerprint."""
        path = self.task_directory(task) / DONE
        try:
            return json.loads(path.read_bytes())  # type: ignore[no-any-return]
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); remove its directory, and run again") from error

    def is_damaged(self, task: int, *, released: bool) -> bool:
        """Whether a file of a finished task is gone or has another size; `released` ones may be gone."""
        for name, file in self.done(task)["files"].items():
            path = self.task_directory(task) / name
            if not path.is_file():
                if not released:
                    return True
            elif path.stat().st_size != file["bytes"]:
                return True
        return False

    def partial_directories(self, task: int) -> list[Path]:
        """What processes are writing for a task, or have left when they were killed."""
        final = self.task_directory(task)
        return sorted(final.parent.glob(f"{final.name}.partial.*"))

    def part_at(self, task: int) -> str:
        """The part that a killed process was at; "" if it was at none that has a name."""
        for directory in self.partial_directories(task):
            try:
                return (directory / WORKING_ON).read_text("utf-8")
            except FileNotFoundError:
                continue
        return ""

    def statistics(self, task: int) -> Statistics:
        return Statistics.from_json(self.done(task)["statistics"])


def run_task(planned: PlannedStep, task: int) -> None:
    """Do a task unless it is done.

    Raises:
        DataError: the task failed, or the disk is full; nothing is published then.
    """
    final = planned.task_directory(task)
    if planned.is_done(task):
        return
    partial = final.with_name(f"{final.name}.partial.{socket.gethostname()}.{os.getpid()}")
    with disk_errors(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    try:
        output = TaskOutput(partial, lost=planned.lost.get(task, {}))
        started = time.process_time()
        with disk_errors(final):
            planned.step.run(task, output)
            output.working_on("")
        output.statistics.seconds += time.process_time() - started
        with disk_errors(final):
            _publish(partial, final, planned, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, final: Path, planned: PlannedStep, output: TaskOutput) -> None:
    files = {}
    for path in sorted(partial.iterdir()):
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # type: ignore[arg-type]
            os.fsync(file.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "xxh3_128": checksum}
    record = {"fingerprint": planned.fingerprint, "files": files, "statistics": output.statistics.to_json()}
    (partial / DONE).write_bytes(dump_json(record))
    fsync_file(partial / DONE)
    fsync_directory(partial)
    try:
        partial.rename(final)
    except OSError:  # a requeued twin of this task, on a node taken for dead, came first: its files are the same
        if not (final / DONE).is_file():
            raise
    fsync_directory(final.parent)


def remove_partial(planned: PlannedStep) -> None:
    """Remove what tasks left behind that were killed. Only while no task of the step runs anywhere."""
    for path in (planned.directory / planned.step.name).glob("*.partial.*"):
        shutil.rmtree(path, ignore_errors=True)


def remove_partial_task(planned: PlannedStep, task: int) -> None:
    """As `remove_partial`, of one task."""
    for path in planned.partial_directories(task):
        shutil.rmtree(path, ignore_errors=True)
