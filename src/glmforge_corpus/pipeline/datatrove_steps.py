"""A step of ours as datatrove's executors run it.

A site's habits with them carry over: partitions, virtual environments, job arrays, limits, logs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from glmforge_corpus.pipeline.task import PlannedStep, run_task

POLL_SECONDS = 1.0
"""How often a cluster's progress is looked at."""


@dataclass
class RunTasks:
    """A step of ours as the one step of a datatrove pipeline: its rank r is our task `tasks[r]`."""

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
