"""Jobs that belong together: what sweeps and chains share.

They have a directory of their own beside those of their jobs, with a record and events; it is not a job, and has no
submissions. Without a scheduler that queues them, their jobs are run from here, one after the other or some at a time,
each when all that it needs has finished. No state is kept but that of the jobs, so this can be killed and run again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

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
"""Is given a job's name, and what has changed about it."""

R = TypeVar("R", bound=FileRecord)


def read_record(root: Path, kind: str, cls: type[R]) -> R:
    """The record of the sweep or chain in `root`. Raises `LaunchError` if it is missing or damaged."""
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
        """Raises `HeldError` on entry if another process works on these jobs."""
        return Lease(self.root, "glmforge")

    def run_here(self, needs: Mapping[str, Sequence[str]], at_once: int, report: Report) -> dict[str, JobState]:
        """Start each job when those that it needs have finished; the state of each when nothing is left to do.

        A job that has finished is not started again, one that runs already is waited for, and one that needs a job
        that failed is skipped. When the whole is cancelled, nothing further starts; Ctrl-C cancels the jobs that run.

        Args:
            needs: job -> jobs that must have finished before it starts.
        """
        with self.lease():
            began = len(self.own.read_events())
            self.own.event("started", f"{len(needs)} jobs, from here")
            return self._run_in_turn(needs, at_once, report, began)

    def _run_in_turn(
        self, needs: Mapping[str, Sequence[str]], at_once: int, report: Report, began: int
    ) -> dict[str, JobState]:
        states: dict[str, JobState] = {}
        ours, settled = set[str](), set[str]()
        try:
            while True:
                for job, (state, why) in self._look([job for job in needs if job not in settled]).items():
                    before, states[job] = states.get(job), state
                    because = f": {why}" if why else ""
                    if before is None and _may_run(state):
                        report(job, f"is {state} already, waiting for it{because}")
                        ours.add(job)
                    elif before is not state and (before is not None or state is JobState.FINISHED):
                        report(job, f"{state}{because}")
                    if not _may_run(state) and (job in ours or state in (JobState.FINISHED, JobState.DAMAGED)):
                        settled.add(job)
                ready = []
                for job in [job for job in needs if job not in settled and not _may_run(states[job])]:
                    missing = [need for need in needs[job] if states.get(need) is not JobState.FINISHED]
                    if failed := [need for need in missing if need in settled]:
                        report(job, f"skipped: {failed[0]} has not finished")
                        settled.add(job)
                    elif not missing:
                        ready.append(job)
                ready = [] if self._is_cancelled(began) else ready
                running = [job for job, state in states.items() if _may_run(state)]
                if not ready and not running:
                    return states
                for job in ready[: max(0, at_once - len(running))]:
                    report(job, "starts")
                    submit(self.directory(job))
                    ours.add(job)
                    states[job] = JobState.STARTING
                pause()
        except KeyboardInterrupt:
            for job in [job for job, state in states.items() if _may_run(state)]:
                try:
                    report(job, "is asked to end")
                    self._cancel(job)
                except GlmforgeError as error:
                    report(job, f"could not be asked to end: {error}")
            raise

    def _look(self, names: Sequence[str]) -> dict[str, tuple[JobState, str]]:
        return {job.name: (job.state, job.why) for job in self.jobs(names)}

    def _is_cancelled(self, began: int) -> bool:
        """Since so many events."""
        return any(event.get("event") == CANCELLED for event in self.own.read_events()[began:])

    def _cancel(self, name: str) -> None:
        for job in self.jobs([name]):
            if job.files is not None:
                cancel_all([job], self.scheduler_of(job.files.description.launch.launcher))


def is_live(job: Job) -> bool:
    """Whether it waits or runs, or may."""
    return _may_run(job.state)


def pause() -> None:
    """Between two looks at the jobs."""
    time.sleep(_LOOK_EVERY_S)


def _may_run(state: JobState) -> bool:
    return not state.is_over and state is not JobState.DAMAGED
