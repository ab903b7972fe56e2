"""A chain: a job for each stage, made of its file, submitted, resumed, and cancelled.

    jobs/life/chain.json     its stages and what each needs; written once, before anything is submitted
    jobs/life/events.jsonl   starts and cancellations
    jobs/life-pretrain/ ...  a job for each stage

Under a scheduler every stage is submitted at once, with `afterok` on the submissions of what it needs; elsewhere, and
where stages have different launchers, they are run from here, one after the other.

Resuming: what has finished stays; what waits or runs stays too, unless it waits for a submission that is over; the
others are submitted. A stage that is requeued keeps its number, and with it what waits for it. One that fails leaves
those behind it waiting for ever ("DependencyNeverSatisfied": Slurm does not end them): they are cancelled and submitted
again. A job that Slurm has but whose submission was not noted, as after a kill, is found by its name and directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime

from glmforge.config.launch import JobName
from glmforge.errors import LaunchError
from glmforge.observe.job_records import CANCELLED, FileRecord, utc_now
from glmforge_ops.jobs.chain.file import StageRecord, read_stages
from glmforge_ops.jobs.control import cancel_all, run_all
from glmforge_ops.jobs.new_job import NewJob
from glmforge_ops.jobs.preflight import check_fit
from glmforge_ops.jobs.registry import Job, SchedulerOf, as_dict
from glmforge_ops.jobs.several import Report, Several, is_live, read_record, write_new
from glmforge_ops.jobs.show import COLUMNS, aligned, job_row
from glmforge_ops.jobs.state import JobState
from glmforge_ops.jobs.submit import adopted, note_submission, submit

_WAITS = (JobState.WAITING, JobState.HELD)


class ChainRecord(FileRecord):
    """What a chain is; never changes."""

    name: JobName
    created: AwareDatetime
    stages: list[StageRecord]
    """In an order in which they can run."""


@dataclass(frozen=True)
class NewChain:
    """A chain that is not written yet: its stages, and the job of each."""

    root: Path
    stages: Sequence[StageRecord]
    jobs: Sequence[NewJob]

    def check(self, scheduler_of: SchedulerOf, *, plan: bool) -> None:
        """Raises `LaunchError`, with the stage, for what a scheduler would refuse, or what by `plan` does not fit."""
        for stage, job in zip(self.stages, self.jobs, strict=True):
            launch = job.description.launch
            try:
                scheduler_of(stage.launcher).check(launch)
                if plan and job.config is not None:
                    check_fit(job.config, launch)
            except LaunchError as error:
                raise LaunchError(f"stage {stage.name}: {error}") from None

    def write(self) -> None:
        """Raises `LaunchError` if a name is taken; then nothing of the chain stays."""
        record = ChainRecord(name=self.root.name, created=utc_now(), stages=list(self.stages))
        write_new(self.root, "chain", self.jobs, record)


def make_chain(file: Path, root: Path, directory: Path) -> NewChain:
    """The chain that a file describes, checked; `root` is where jobs lie, and all stages run in `directory`.

    Raises `ConfigError`, which names the stage.
    """
    name, stages = read_stages(file, root, directory)
    return NewChain(root / name, [stage for stage, _ in stages], [job for _, job in stages])


class Chain(Several):
    """A chain that has been written."""

    def __init__(self, root: Path, scheduler_of: SchedulerOf) -> None:
        record = read_record(root, "chain", ChainRecord)
        self.stages = {stage.name: stage for stage in record.stages}
        super().__init__(root, [stage.job for stage in record.stages], scheduler_of)

    @property
    def is_queued(self) -> bool:
        """Whether a scheduler takes all stages at once."""
        return {stage.launcher for stage in self.stages.values()} in ({"slurm"}, {"pbs"})

    def by_stage(self) -> dict[str, Job]:
        return dict(zip(self.stages, self.jobs(), strict=True))

    def submit(self, report: Report) -> None:
        """Submit every stage that has not finished and is not queued or running.

        Raises `HeldError` while another process does the same.
        """
        with self.lease():
            self._adopt(report)
            ids: dict[str, str] = {}
            """Stage -> its submission, of those that have not finished."""
            again = set[str]()
            for name, job in self.by_stage().items():
                stage = self.stages[name]
                needed = {need: ids[need] for need in stage.needs if need in ids}
                if job.state is JobState.DAMAGED:
                    raise LaunchError(f"stage {name}: {job.why}")
                if job.state is JobState.FINISHED:
                    report(name, "has finished already")
                elif (
                    job.submission is not None and _may_go_on(job) and not (job.state in _WAITS and again & set(needed))
                ):
                    report(name, f"is {job.state} as {job.submission}")
                    ids[name] = job.submission
                else:
                    ids[name] = self._submit(stage, job, list(needed.values()))
                    again.add(name)
                    report(name, f"submitted as {ids[name]}" + (f", after {', '.join(needed)}" if needed else ""))

    def run(self, report: Report) -> dict[str, JobState]:
        """Run one stage after the other from here; the state of each job at the end."""
        jobs = {stage.job: [self.stages[need].job for need in stage.needs] for stage in self.stages.values()}
        return self.run_here(jobs, 1, report)

    def cancel(self) -> list[str]:
        """Cancel every stage that waits or runs; their names."""
        live = {name: job for name, job in self.by_stage().items() if is_live(job)}
        self.own.event(CANCELLED, "as a whole")
        last_first = reversed(live.items())  # else the next one might start in between
        run_all([partial(cancel_all, [job], self.scheduler_of(self.stages[name].launcher)) for name, job in last_first])
        return list(live)

    def hint(self, name: str, jobs: Mapping[str, Job]) -> str:
        """Why a stage does not go on by itself, and what to do; '' if it does."""
        stage, job, resume = self.stages[name], jobs[name], f"'glmforge chain resume {self.root.name}'"
        if job.state is JobState.FINISHED:
            missing = [output for output, path in stage.outputs.items() if not path.exists()]
            return f"its outputs {', '.join(missing)} are missing" if missing else ""
        failed = [
            need for need in stage.needs if jobs[need].state.is_over and jobs[need].state is not JobState.FINISHED
        ]
        if failed and (job.state.is_over or job.state in _WAITS):
            return f"cannot start: {failed[0]} is {jobs[failed[0]].state}; fix that, then {resume}"
        return f"waits for a submission that will never finish: {resume}" if _waits_in_vain(job) else ""

    def _adopt(self, report: Report) -> None:
        """Note jobs that the scheduler has and that nothing knows: submitting them was killed."""
        for name, job in self.by_stage().items():
            if job.is_to_submit:
                directory, scheduler = job.directory, self.scheduler_of(self.stages[name].launcher)
                if found := adopted(directory, [each.id for each in directory.read_submissions()], scheduler):
                    note_submission(directory, found, self.stages[name].launcher)
                    report(name, f"was submitted before, as {found}")

    def _submit(self, stage: StageRecord, job: Job, after: Sequence[str]) -> str:
        """In the place of its submission that waits for the wrong ones, if there is one."""
        scheduler = self.scheduler_of(stage.launcher)
        if job.submission is not None and not job.is_to_submit:
            job.directory.event(CANCELLED, "to be submitted again, after what it needs now", submission=job.submission)
            scheduler.cancel(job.submission)
        return submit(job.directory, scheduler=scheduler, after=after).id


def lines_of(chain: Chain) -> list[str]:
    """The table of jobs, then a line for each stage that has something to say."""
    jobs = chain.by_stage()
    words = ((name, chain.hint(name, jobs) or job.why) for name, job in jobs.items())
    rows = [job_row(job)[:-1] for job in jobs.values()]
    return [*aligned([COLUMNS[:-1], *rows]), *(f"{name}: {text}" for name, text in words if text)]


def as_rows(chain: Chain) -> list[dict[str, Any]]:
    """For programs: each stage with its job as 'glmforge jobs list --json' has it."""
    jobs = chain.by_stage()
    return [
        {"stage": name, "needs": chain.stages[name].needs, "hint": chain.hint(name, jobs), **as_dict(job)}
        for name, job in jobs.items()
    ]


def _may_go_on(job: Job) -> bool:
    return not job.is_to_submit and not _waits_in_vain(job)


def _waits_in_vain(job: Job) -> bool:
    return job.state is JobState.HELD and "never" in job.why.lower()
