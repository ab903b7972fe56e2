"""Jobs that belong together: what sweeps and chains share.

They have a directory of their own beside those of their jobs, with a record and events; it is not a job, and has no
submissions. Where no scheduler queues them, their jobs are run from here, one after the other or some at a time. What
has finished is not run again, and what runs already (another runner was ended, its jobs go on) is waited for. A job
starts when all that it needs has finished; if one of those fails, it is skipped. No state is kept but that of the jobs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from glmforge.config.launch import LaunchConfig
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import shown
from glmforge.observe.job_records import CANCELLED, FileRecord, JobDirectory
from glmforge.observe.run import write_text
from glmforge.runtime.lease import Lease
from glmforge_ops.jobs.control import cancel_all
from glmforge_ops.jobs.new_job import NewJob, make_directory, removed_on_error
from glmforge_ops.jobs.registry import Job, SchedulerOf, find_jobs
from glmforge_ops.jobs.state import JobState
from glmforge_ops.jobs.submit import submit

_LOOK_EVERY_S = 1.0
_MAX_RECORD_BYTES = 1 << 26

Report = Callable[[str, str], None]
"""Is given a job's name, and what there is to say of it."""

R = TypeVar("R", bound=FileRecord)


def read_record(root: Path, kind: str, cls: type[R]) -> R:
    """The record of the sweep or chain in `root`. Raises `LaunchError` if there is none, or it is damaged."""
    if not root.is_dir():
        made = "glmforge launch CONFIG --sweep ..." if kind == "sweep" else "glmforge chain run FILE"
        raise LaunchError(f"{shown(root)}: no such {kind}; '{made}' makes one")
    record = cls.read(root / f"{kind}.json", max_bytes=_MAX_RECORD_BYTES)
    if record is None:
        raise LaunchError(
            f"{shown(root)}: is not a {kind}, or was interrupted before it was submitted; if so, delete it and its "
            f"jobs, {shown(root.name)}-*, and submit it again"
        )
    return record


def write_new(root: Path, kind: str, jobs: Sequence[NewJob], record: FileRecord, script: str | None = None) -> None:
    """Write a sweep or chain. Raises `LaunchError` if a name is taken; then nothing of it stays."""
    again = {"sweep": "resubmit", "chain": "resume"}[kind]
    with removed_on_error() as made:
        make_directory(root, f"the name is taken; choose another one, or 'glmforge {kind} {again} {root.name}'")
        made.append(root)
        for job in jobs:
            job.write()
            made.append(job.directory.root)
        if script is not None:
            write_text(JobDirectory(root).script, script)
        record.write(root / f"{kind}.json")


@dataclass
class Several:
    """The jobs of a sweep or chain, by name in their order."""

    root: Path
    names: Sequence[str]
    scheduler_of: SchedulerOf

    @property
    def own(self) -> JobDirectory:
        """For the script and the events."""
        return JobDirectory(self.root)

    def directory(self, name: str) -> JobDirectory:
        return JobDirectory(self.root.parent / name)

    def jobs(self, names: Sequence[str] | None = None) -> list[Job]:
        return find_jobs(self.root.parent, self.names if names is None else names, self.scheduler_of)

    def lease(self) -> Lease:
        """Raises `HeldError` on entry if somebody else works on these jobs."""
        return Lease(self.root, "glmforge")

    def run_here(self, needs: Mapping[str, Sequence[str]], at_once: int, report: Report) -> dict[str, JobState]:
        """Run these jobs from here, each after what it needs; the state of each at the end."""
        with self.lease():
            began = len(self.own.read_events())
            self.own.event("started", f"{len(needs)} jobs, from here")
            runner = InTurn(
                look=lambda names: {job.name: (job.state, job.why) for job in self.jobs(names)},
                start=lambda name: submit(self.directory(name)),
                cancel=lambda name: self._cancel(self.jobs([name])),
                report=report,
                is_wanted=lambda: not any(event.get("event") == CANCELLED for event in self.own.read_events()[began:]),
            )
            return runner.run(needs, at_once)

    def _cancel(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.files is not None:
                cancel_all([job], self.scheduler_of(job.files.description.launch.launcher))


def is_noted(launch: LaunchConfig) -> bool:
    """Whether anybody notes how a job of these options ends: its supervisor, or a scheduler."""
    return launch.supervise or launch.launcher in ("slurm", "pbs")


def is_live(job: Job) -> bool:
    """Whether it waits or runs, or may."""
    return not job.state.is_over and job.state is not JobState.DAMAGED


@dataclass
class InTurn:
    """Starts jobs when their turn has come.

    Attributes:
        look: state and reason of the jobs with these names.
        start: starts a job.
        cancel: asks a job to end.
        report: is given every change.
        is_wanted: whether to start further jobs.
        pause: between two looks.
    """

    look: Callable[[Sequence[str]], Mapping[str, tuple[JobState, str]]]
    start: Callable[[str], object]
    cancel: Callable[[str], object]
    report: Report = lambda job, words: None
    is_wanted: Callable[[], bool] = lambda: True
    pause: Callable[[], None] = field(default=lambda: time.sleep(_LOOK_EVERY_S))

    def run(self, needs: Mapping[str, Sequence[str]], at_once: int = 1) -> dict[str, JobState]:
        """Run all jobs, the keys; the state of each when nothing is left to do. Ctrl-C cancels those that run."""
        self._needs, self._states = needs, dict[str, JobState]()
        self._ours, self._skipped = set[str](), set[str]()
        try:
            while not self._round(at_once):
                self.pause()
        except KeyboardInterrupt:
            for job in self._running():
                self._end(job)
            raise
        return self._states

    def _round(self, at_once: int) -> bool:
        """Whether nothing is left to do."""
        for job, (state, why) in self.look([job for job in self._needs if not self._is_settled(job)]).items():
            before, self._states[job] = self._states.get(job), state
            because = f": {why}" if why else ""
            if before is None and not state.is_over and state is not JobState.DAMAGED:
                self.report(job, f"is {state} already, waiting for it{because}")
                self._ours.add(job)
            elif before is not state and (before is not None or state is JobState.FINISHED):
                self.report(job, f"{state}{because}")
        ready = [job for job in self._needs if self._is_ready(job)] if self.is_wanted() else []
        for job in ready[: max(0, at_once - len(self._running()))]:
            self.report(job, "starts")
            self.start(job)
            self._ours.add(job)
            self._states[job] = JobState.STARTING
        return not ready and not self._running()

    def _is_settled(self, job: str) -> bool:
        """Whether nothing more is to come of it."""
        state = self._states.get(job)
        if state in (JobState.FINISHED, JobState.DAMAGED) or job in self._skipped:
            return True
        return state is not None and state.is_over and job in self._ours

    def _running(self) -> list[str]:
        return [job for job, state in self._states.items() if not state.is_over and state is not JobState.DAMAGED]

    def _is_ready(self, job: str) -> bool:
        if self._is_settled(job) or not self._states[job].is_over:
            return False
        missing = [need for need in self._needs[job] if self._states.get(need) is not JobState.FINISHED]
        hopeless = [need for need in missing if self._is_settled(need)]
        if hopeless:
            self._skipped.add(job)
            self.report(job, f"skipped: {hopeless[0]} has not finished")
        return not missing

    def _end(self, job: str) -> None:
        """One that cannot be cancelled keeps none of the others from it."""
        try:
            self.report(job, "is asked to end")
            self.cancel(job)
        except GlmforgeError as error:
            self.report(job, f"could not be asked to end: {error}")
