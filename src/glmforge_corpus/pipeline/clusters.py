"""Tasks on a Slurm or a Ray cluster, through datatrove's executors.

A site's habits with them carry over: partitions, virtual environments, job arrays, limits, logs. What we add is that a
step is waited for, because the next one reads what it wrote.
"""

import logging
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmforge.errors import DataError
from glmforge.extras import needed_for
from glmforge_corpus.pipeline.execution import Executor, TaskDone, begun
from glmforge_corpus.pipeline.task import PlannedStep, run_task

if TYPE_CHECKING:
    from glmforge_corpus.pipeline.executors import RaySettings, SlurmSettings

_log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often a cluster's progress is looked at."""
MAX_LAUNCHES = 3
"""Of jobs whose start failed on a node, as on one that is overloaded."""


@dataclass
class _RunTasks:
    """A step of ours as the one step of a datatrove pipeline: its rank r is our task `tasks[r]`."""

    planned: PlannedStep
    tasks: tuple[int, ...]

    def __call__(self, data: object, rank: int = 0, world_size: int = 1) -> None:
        run_task(self.planned, self.tasks[rank])


class _RunTasksApart(_RunTasks):
    """The same, each in a process of its own, which may be killed.

    datatrove's actors run tasks in a `Pool`, which waits for ever for a process that was killed. What the process
    leaves behind tells of its death (`begun`).
    """

    def __call__(self, data: object, rank: int = 0, world_size: int = 1) -> None:
        with (
            suppress(BrokenProcessPool),
            ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool,
        ):
            pool.submit(run_task, self.planned, self.tasks[rank]).result()


class SlurmExecutor(Executor):
    """A job array per step through datatrove's Slurm executor, waited for."""

    def __init__(self, settings: "SlurmSettings") -> None:
        self._settings = settings
        self._job: str | None = None
        self._failed_launches = 0

    def attempt(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> dict[int, str]:
        with _quiet_datatrove():
            self._job = self._submit(planned, tasks, log_dir)
        waiting = set(tasks)
        while waiting:
            queued = _is_queued(self._job)  # asked before looking: what is done by now was done by then
            for task in [task for task in sorted(waiting) if planned.is_done(task)]:
                waiting.remove(task)
                task_done(task)
            if waiting and not queued:
                return self._deaths(planned, waiting, len(tasks), log_dir)
            if waiting and _could_not_be_launched(self._job):
                self._launch_again(planned)
                return {}
            if waiting:
                time.sleep(POLL_SECONDS)
        self._job = None
        return {}

    def _launch_again(self, planned: PlannedStep) -> None:
        """Give up a job that a node could not launch; what it has not done is submitted as another one, some times."""
        assert self._job is not None
        job, self._job = self._job, None
        subprocess.run(["scancel", job], check=False)
        self._failed_launches += 1
        told = f"{planned.step.name}: Slurm could not launch job {job} on its node"
        if self._failed_launches >= MAX_LAUNCHES:
            raise DataError(f"{told}, as {MAX_LAUNCHES - 1} others: see the log of slurmd there, then run this again")
        _log.warning("%s; it is submitted again", told)

    def _deaths(self, planned: PlannedStep, waiting: set[int], num_tasks: int, log_dir: Path) -> dict[int, str]:
        """The tasks whose processes were killed, unless Slurm itself ended them: a limit of time is no fault of a file.

        Raises:
            DataError: none was killed, or Slurm ended some.
        """
        assert self._job is not None
        job, self._job = self._job, None
        died = begun(planned, waiting)
        states = _end_states(job)
        if died and states and states <= _DIED:
            return dict.fromkeys(died, f"Slurm job {job}: {', '.join(sorted(states - {'COMPLETED'}))}")
        told = f" ({', '.join(sorted(states - _DIED))})" if states - _DIED else ""
        raise DataError(
            f"{planned.step.name}: Slurm job {job} ended with {len(waiting):,} of {num_tasks:,} tasks not done, the "
            f"first of them {min(waiting)}{told}: see {log_dir}"
        )

    def _submit(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path) -> str:
        from datatrove.executor.slurm import SlurmPipelineExecutor

        class Submission(SlurmPipelineExecutor):  # type: ignore[misc]
            def launch_merge_stats(self) -> None:
                """Nothing: tasks' statistics are ours, and a job more would wait in the queue."""

        settings = self._settings
        activate = Path(sys.prefix) / "bin" / "activate"
        submission = Submission(
            pipeline=[_RunTasks(planned, tuple(tasks))],
            tasks=len(tasks),
            time=settings.time,
            partition=settings.partition,
            workers=settings.workers,
            tasks_per_job=settings.tasks_per_job,
            cpus_per_task=settings.cpus_per_task,
            mem_per_cpu_gb=settings.mem_per_cpu_gb,
            qos=settings.qos,
            env_command=settings.env_command or (f"source {activate}" if activate.exists() else "true"),
            sbatch_args=dict(settings.sbatch_args),
            job_name=f"{planned.directory.name}-{planned.step.name}",
            logging_dir=str(log_dir),
            mail_type="NONE",
        )
        try:
            submission.run()
        except (OSError, subprocess.CalledProcessError) as error:
            raise DataError(f"executors.slurm: sbatch did not take the job, and said why above ({error})") from error
        return str(submission.job_id)

    def __exit__(self, *error: object) -> None:
        if self._job is not None:
            subprocess.run(["scancel", self._job], check=False)


def _is_queued(job: str) -> bool:
    """Whether Slurm still has an array job that waits or runs; while its controller does not answer, it may."""
    answer = subprocess.run(["squeue", "--noheader", "--jobs", job, "--format", "%T"], capture_output=True, text=True)
    if answer.returncode:
        return "Invalid job id" not in answer.stderr
    return bool(answer.stdout.strip())


def _could_not_be_launched(job: str) -> bool:
    """Whether Slurm holds an array job whose start failed on the node: it would wait for an administrator for ever."""
    answer = subprocess.run(["squeue", "--noheader", "--jobs", job, "--format", "%r"], capture_output=True, text=True)
    return "launch failed requeued held" in answer.stdout


_DIED = {"COMPLETED", "FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"}
"""States of array jobs after which what was not done may be tried again."""


def _end_states(job: str) -> set[str]:
    """The states of an array job's jobs that have ended; none if Slurm has forgotten them (MinJobAge, minutes)."""
    command = ["squeue", "--noheader", "--array", "--states=all", "--jobs", job, "--format", "%T"]
    return set(subprocess.run(command, capture_output=True, text=True).stdout.split())


class RayExecutor(Executor):
    """A Ray actor per task through datatrove's Ray executor."""

    def __init__(self, settings: "RaySettings") -> None:
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
                f"executors.ray: no Ray cluster answers at address '{address}': give another, or null for one of this "
                "machine"
            ) from error
        return self

    def attempt(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> dict[int, str]:
        waiting = set(tasks)
        with _quiet_datatrove():
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
                return dict.fromkeys(died, "killed on Ray, as for want of memory")
            cause = f" ({failure[0]})" if failure else ""
            raise DataError(
                f"{planned.step.name}: {len(waiting):,} of {len(tasks):,} tasks were not done on Ray{cause}, the first "
                f"of them {min(waiting)}: see {log_dir}"
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
        except Exception as error:  # noqa: BLE001 - told to the caller's thread, which raises it in its own words
            failure.append(error)

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()


@contextmanager
def _quiet_datatrove() -> Iterator[None]:
    """The terminal shows our progress; what datatrove's tasks say is in files of the log directory."""
    from loguru import logger

    logger.disable("datatrove")
    try:
        yield
    finally:
        logger.enable("datatrove")
