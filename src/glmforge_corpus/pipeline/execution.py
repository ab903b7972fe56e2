"""What it is to execute a step, and what is done when the process of a task dies.

A task that raises has found something that its user must know of, and ends the run. A task whose process is killed
(by the kernel for lack of memory, or by its own crash in compiled code) has reported nothing: it is run once more, by
itself. If it dies again at the same part, which for the extraction is a file, that part is put aside as "killed its
worker", and the task is run without it. What the other parts give is the same as if that one had never been there.

`RunTasks` is a step as datatrove's executors for Slurm and Ray run it.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from glmforge.errors import DataError
from glmforge_corpus.pipeline.task import PlannedStep, remove_partial_task, run_task

_log = logging.getLogger(__name__)

TaskDone = Callable[[int], None]
"""Called in the launching process with a task that is done."""

_DEATHS = 2
"""Deaths at the same part after which it is put aside; one may have been the fault of another task on the machine."""


class Executor(AbstractContextManager["Executor"], ABC):
    """Runs tasks. Used as a context manager: leaving it ends what it started."""

    @abstractmethod
    def attempt(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> dict[int, str]:
        """Run `tasks` of a step once.

        Returns:
            How the process died, per task that was begun and whose process died; tasks that others' deaths kept from
            being begun are neither there nor done. Empty when all are done.

        Raises:
            DataError: a task failed, or nothing could be begun; others may have been finished.
        """

    def run(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> None:
        """Run `tasks` of a step and return when all are done.

        Raises:
            DataError: a task failed; others may have been finished.
        """
        attempts, reported = 0, set[int]()

        def tell(task: int) -> None:
            reported.add(task)
            task_done(task)

        def attempt(step: PlannedStep, some: Sequence[int]) -> dict[int, str]:
            nonlocal attempts
            attempts += 1
            logs = log_dir if attempts == 1 else log_dir.with_name(f"{log_dir.name}-again{attempts - 1}")
            died = self.attempt(step, some, logs, tell)
            for task in some:
                if task not in reported and planned.is_done(task):  # done when another one's process died
                    tell(task)
            return died

        waiting: Sequence[int] = tasks
        while waiting:
            for task, how in sorted(attempt(planned, waiting).items()):
                _again(planned, task, how, attempt)
            waiting = [task for task in waiting if not planned.is_done(task)]


def _again(
    planned: PlannedStep, task: int, how: str, attempt: Callable[[PlannedStep, Sequence[int]], dict[int, str]]
) -> None:
    """Run a task whose process died by itself, leaving out what it dies at again, until it is done."""
    deaths, lost = Counter[str](), dict[str, str]()
    alone = 0
    while True:
        part = planned.part_at(task)
        remove_partial_task(planned, task)
        deaths[part] += 1
        if part and deaths[part] >= _DEATHS:
            lost[part] = f"the process that read it died {deaths[part]} times ({how})"
            _log.warning("%s: %s: quarantined", part, lost[part])
        elif alone and not part:
            raise DataError(
                f"{planned.step.name}: task {task} died twice, the second time alone ({how}); give it more memory, "
                f"or check its input: {planned.step.reads(task)}"
            )
        died = attempt(replace(planned, lost={task: lost}), [task])
        if not died:
            return
        how, alone = died[task], alone + 1


def begun(planned: PlannedStep, tasks: Iterable[int]) -> list[int]:
    """The tasks that are not done though a process began them: it was killed, or is at work still."""
    return [task for task in tasks if not planned.is_done(task) and planned.partial_directories(task)]


POLL_SECONDS = 1.0
"""How often a cluster's progress is looked at."""


@dataclass
class RunTasks:
    """A step of glmforge as the one step of a datatrove pipeline: its rank r is our task `tasks[r]`."""

    planned: PlannedStep
    tasks: tuple[int, ...]

    def __call__(self, data: object, rank: int = 0, world_size: int = 1) -> None:
        run_task(self.planned, self.tasks[rank])


@contextmanager
def quiet_datatrove() -> Iterator[None]:
    """The terminal shows our progress; what datatrove's tasks say is in files of the log directory."""
    from loguru import logger

    logger.disable("datatrove")
    try:
        yield
    finally:
        logger.enable("datatrove")
