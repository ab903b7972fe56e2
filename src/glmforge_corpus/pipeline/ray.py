"""Tasks on a Ray cluster: an actor per task through datatrove, waited for, because the next step reads it."""

import logging
import multiprocessing
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any

from glmforge.errors import DataError
from glmforge.extras import needed_for
from glmforge_corpus.pipeline.execution import POLL_SECONDS, Executor, RunTasks, TaskDone, begun, quiet_datatrove
from glmforge_corpus.pipeline.settings import RaySettings
from glmforge_corpus.pipeline.task import PlannedStep, run_task


class _RunTasksApart(RunTasks):
    """The same, each in a process of its own, which may be killed.

    datatrove's actors run tasks in a `Pool`, which waits for ever for a process that was killed. What the process
    leaves behind shows that it died (`begun`).
    """

    def __call__(self, data: object, rank: int = 0, world_size: int = 1) -> None:
        with (
            suppress(BrokenProcessPool),
            ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool,
        ):
            pool.submit(run_task, self.planned, self.tasks[rank]).result()


class RayExecutor(Executor):
    """A Ray actor per task through datatrove's Ray executor."""

    def __init__(self, settings: RaySettings) -> None:
        with needed_for("executor 'ray'"):
            import ray
        self._settings, self._ray = settings, ray

    def __enter__(self) -> Executor:
        options: dict[str, Any] = {"address": self._settings.address or "local"}
        if self._settings.address is None:
            options["include_dashboard"] = False
        try:
            self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except ConnectionError as error:
            address = self._settings.address
            raise DataError(
                f"executors.ray: no Ray cluster at address '{address}'; set another, or null to start one on this "
                "machine"
            ) from error
        return self

    def attempt(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> dict[int, str]:
        waiting = set(tasks)
        with quiet_datatrove():
            failure = list[BaseException]()
            thread = threading.Thread(target=self._run, args=(planned, tuple(tasks), log_dir, failure), daemon=True)
            thread.start()
            while thread.is_alive():
                thread.join(POLL_SECONDS)
                for task in [task for task in sorted(waiting) if planned.is_done(task)]:
                    waiting.remove(task)
                    task_done(task)
        for task in [task for task in sorted(waiting) if planned.is_done(task)]:
            waiting.remove(task)
            task_done(task)
        if waiting:
            if not failure and (died := begun(planned, waiting)):
                return dict.fromkeys(died, "killed on Ray, probably out of memory")
            cause = f" ({failure[0]})" if failure else ""
            raise DataError(
                f"{planned.step.name}: {len(waiting):,} of {len(tasks):,} tasks unfinished on Ray{cause}, the first "
                f"one {min(waiting)}: see {log_dir}"
            )
        return {}

    def _run(self, planned: PlannedStep, tasks: tuple[int, ...], log_dir: Path, failure: list[BaseException]) -> None:
        from datatrove.executor.ray import RayPipelineExecutor

        settings = self._settings
        try:
            RayPipelineExecutor(
                pipeline=[_RunTasksApart(planned, tasks)],
                tasks=len(tasks),
                workers=settings.workers,
                cpus_per_task=settings.cpus_per_task,
                mem_per_cpu_gb=settings.mem_per_cpu_gb,
                logging_dir=str(log_dir),
            ).run()
        except Exception as error:  # noqa: BLE001 - passed to the caller's thread, which raises its own error
            failure.append(error)

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()
