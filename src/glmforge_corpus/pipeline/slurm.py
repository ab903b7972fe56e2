"""Tasks on a Slurm cluster: a job array per step through datatrove, waited for, because the next step reads it."""

import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from glmforge.errors import DataError
from glmforge_corpus.pipeline.execution import POLL_SECONDS, Executor, RunTasks, TaskDone, begun, quiet_datatrove
from glmforge_corpus.pipeline.settings import SlurmSettings
from glmforge_corpus.pipeline.task import PlannedStep

_log = logging.getLogger(__name__)

MAX_LAUNCHES = 3
"""Of jobs whose start failed on a node, as on one that is overloaded."""

# States in which a job's processes ended without Slurm's doing: what they have not done may be tried again.
_DIED = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"})


class SlurmExecutor(Executor):
    """A job array per step through datatrove's Slurm executor, waited for."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._job: str | None = None
        self._failed_launches = 0

    def attempt(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> dict[int, str]:
        with quiet_datatrove():
            self._job = self._submit(planned, tasks, log_dir)
        waiting = set(tasks)
        while waiting:
            queued = _is_queued(self._job)  # asked before looking: what is done by now was done by then
            for task in [task for task in sorted(waiting) if planned.is_done(task)]:
                waiting.remove(task)
                task_done(task)
            if waiting and not queued:
                return self._deaths(planned, waiting, len(tasks), log_dir)
            if waiting and _raise_or_resubmit(self._job):
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
        said = f"{planned.step.name}: Slurm could not launch job {job} on its node"
        if self._failed_launches >= MAX_LAUNCHES:
            raise DataError(f"{said}, nor {MAX_LAUNCHES - 1} others; see the slurmd log there, then run this again")
        _log.warning("%s; resubmitting", said)

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
        said = f" ({', '.join(sorted(states - _DIED))})" if states - _DIED else ""
        raise DataError(
            f"{planned.step.name}: Slurm job {job} ended with {len(waiting):,} of {num_tasks:,} tasks unfinished, the "
            f"first of them {min(waiting)}{said}: see {log_dir}"
        )

    def _submit(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path) -> str:
        from datatrove.executor.slurm import SlurmPipelineExecutor

        class Submission(SlurmPipelineExecutor):  # type: ignore[misc]
            def launch_merge_stats(self) -> None:
                """Nothing: tasks' statistics are ours, and a job more would wait in the queue."""

        settings = self._settings
        activate = Path(sys.prefix) / "bin" / "activate"
        submission = Submission(
            pipeline=[RunTasks(planned, tuple(tasks))],
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
            raise DataError(f"executors.slurm: sbatch rejected the job, see its message above ({error})") from error
        return str(submission.job_id)

    def __exit__(self, *error: object) -> None:
        if self._job is not None:
            subprocess.run(["scancel", self._job], check=False)


def _is_queued(job: str) -> bool:
    """Whether Slurm still has an array job that waits or runs; while its controller does not answer, it may."""
    answer = _squeue("--jobs", job, "--format", "%T")
    if answer.returncode:
        return "Invalid job id" not in answer.stderr
    return bool(answer.stdout.strip())


def _raise_or_resubmit(job: str) -> bool:
    """Whether Slurm holds an array job whose start failed on the node: it would wait for an administrator for ever."""
    return "launch failed requeued held" in _squeue("--jobs", job, "--format", "%r").stdout


def _end_states(job: str) -> set[str]:
    """The states of an array job's jobs that have ended; none if Slurm has forgotten them (MinJobAge, minutes)."""
    return set(_squeue("--array", "--states=all", "--jobs", job, "--format", "%T").stdout.split())


def _squeue(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["squeue", "--noheader", *arguments], capture_output=True, text=True)
