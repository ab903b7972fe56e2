"""A chain: a job for each stage, made of its file, submitted, resumed, looked at and cancelled.

    jobs/life/chain.json     its stages and what each needs; written once, before anything is submitted
    jobs/life/chain.yaml     the file that it was made of
    jobs/life/events.jsonl   every submission, with the submissions that it waits for
    jobs/life-pretrain/ ...  a job for each stage

Under a scheduler every stage is submitted at once, with `afterok` on the submissions of what it needs; elsewhere, and
where stages have different launchers, they are run from here, one after the other.

Resuming: what has finished stays; what waits or runs stays too, if it waits for the right submissions. The others are
submitted, again if need be. A stage that is requeued keeps its number, and with it what waits for it. One that fails
leaves those behind it waiting for ever ("DependencyNeverSatisfied": Slurm does not end them by itself), and one that
was submitted again by itself has another number: then those that wait are cancelled, and submitted again. A submission
that was not noted, since who made it was killed, is found by its name and directory, and adopted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, Field

from glmforge.config.launch import JobName, Launcher
from glmforge.config.load import dump_config, load_settings
from glmforge.errors import GlmforgeError, LaunchError
from glmforge.files import read_text
from glmforge.observe.job_records import CANCELLED, FileRecord, JobDirectory, utc_now
from glmforge.observe.run import write_text
from glmforge_ops.jobs.chain.file import ChainFile, without_secrets
from glmforge_ops.jobs.chain.stages import ChainStage, resolve_stages
from glmforge_ops.jobs.control import cancel_all, run_all
from glmforge_ops.jobs.new_job import NewJob, command_job, make_directory, removed_on_error, run_job
from glmforge_ops.jobs.preflight import check_fit
from glmforge_ops.jobs.registry import Job, SchedulerOf, as_dict
from glmforge_ops.jobs.several import Report, Several, is_live, read_record
from glmforge_ops.jobs.show import aligned
from glmforge_ops.jobs.state import JobState, step_words
from glmforge_ops.jobs.submit import adopted, note_submission, submit

WITH_DEPENDENCIES = ("slurm", "pbs")


class StageRecord(FileRecord):
    """A stage of a chain."""

    name: str
    job: JobName
    needs: list[str]
    launcher: Launcher
    outputs: dict[str, Path] = Field(default={})


class ChainRecord(FileRecord):
    """What a chain is; never changes."""

    name: JobName
    created: AwareDatetime
    stages: list[StageRecord]
    """In an order in which they can run."""


@dataclass(frozen=True)
class NewChain:
    """A chain that is not written yet."""

    root: Path
    stages: Sequence[ChainStage]
    jobs: Sequence[NewJob]
    text: str

    def check(self, scheduler_of: SchedulerOf, *, plan: bool) -> None:
        """Raises `LaunchError`, with the stage, for what a scheduler would refuse, or what by `plan` does not fit."""
        for stage in self.stages:
            try:
                scheduler_of(stage.launch.launcher).check(stage.launch)
                if plan and stage.config is not None:
                    check_fit(stage.config, stage.launch)
            except LaunchError as error:
                raise LaunchError(f"stage {stage.name}: {error}") from None

    def write(self) -> None:
        """Raises `LaunchError` if a name is taken; then nothing of the chain stays."""
        resume = f"'glmforge chain resume {self.root.name}'"
        with removed_on_error() as made:
            make_directory(self.root, f"the name is taken; {resume}, or give the chain another name in its file")
            made.append(self.root)
            for job in self.jobs:
                job.write()
                made.append(job.directory.root)
            write_text(self.root / "chain.yaml", self.text)
            stages = [
                StageRecord(
                    name=stage.name,
                    job=stage.job,
                    needs=list(stage.needs),
                    launcher=stage.launch.launcher,
                    outputs=dict(stage.outputs),
                )
                for stage in self.stages
            ]
            ChainRecord(name=self.root.name, created=utc_now(), stages=stages).write(self.root / "chain.json")


def make_chain(file: Path, root: Path, directory: Path) -> NewChain:
    """The chain that a file describes, checked.

    Args:
        root: where jobs lie.
        directory: in which all stages run.

    Raises `ConfigError`, which names the stage, and `LaunchError`.
    """
    chain = load_settings(ChainFile, file)
    stages = resolve_stages(chain, root, directory)
    jobs = [_job(stage, root, chain.name) for stage in stages]
    kept = without_secrets(chain)
    text = read_text(file, error=LaunchError) if kept == chain else dump_config(kept)
    return NewChain(root / chain.name, stages, jobs, text)


def _job(stage: ChainStage, root: Path, chain: str) -> NewJob:
    directory = JobDirectory(root / stage.job)
    try:
        if stage.config is None:
            job = command_job(directory, stage.command, stage.launch)
        else:
            job = run_job(directory, stage.config, stage.launch)
    except GlmforgeError as error:
        raise LaunchError(f"stage {stage.name}: {error}") from None
    return replace(job, description=job.description.model_copy(update={"part_of": chain}))


class Chain(Several):
    """A chain that has been written."""

    def __init__(self, root: Path, scheduler_of: SchedulerOf) -> None:
        record = read_record(root, "chain", ChainRecord)
        self.stages = {stage.name: stage for stage in record.stages}
        super().__init__(root, [stage.job for stage in record.stages], scheduler_of)

    @property
    def is_submitted_at_once(self) -> bool:
        launchers = {stage.launcher for stage in self.stages.values()}
        return len(launchers) == 1 and launchers <= set(WITH_DEPENDENCIES)

    def submit(self, report: Report) -> None:
        """Submit every stage that has not finished and is not on its way. Raises `HeldError` if somebody else does."""
        with self.lease():
            jobs = self.by_stage()
            ids: dict[str, str] = {}
            """Stage -> its submission, of those that have not finished."""
            for name, stage in self.stages.items():
                job = jobs[name]
                needed = {need: ids[need] for need in stage.needs if need in ids}
                if job.state is JobState.DAMAGED:
                    raise LaunchError(f"stage {name}: {job.why}")
                if job.state is JobState.FINISHED:
                    report(name, "has finished already")
                elif kept := self._kept(stage, job, needed):
                    report(name, f"is {job.state} as {kept}")
                    ids[name] = kept
                elif found := self._adopted(stage, job, needed):
                    report(name, f"is {found}, as an earlier start had submitted it")
                    ids[name] = found
                else:
                    ids[name] = self._submit(stage, needed)
                    report(name, f"submitted as {ids[name]}" + (f", after {', '.join(needed)}" if needed else ""))

    def run_stages(self, report: Report) -> dict[str, JobState]:
        """Run one stage after the other from here; the state of each job at the end."""
        jobs = {stage.job: [self.stages[need].job for need in stage.needs] for stage in self.stages.values()}
        return self.run_here(jobs, 1, report)

    def cancel(self) -> list[str]:
        """Cancel every stage that waits or runs; their names."""
        live = {name: job for name, job in self.by_stage().items() if is_live(job)}
        groups: dict[Launcher, list[Job]] = {}
        for name, job in reversed(live.items()):  # the last first, else the next one might start in between
            groups.setdefault(self.stages[name].launcher, []).append(job)
        self.own.event(CANCELLED, "as a whole")
        run_all([partial(cancel_all, jobs, self.scheduler_of(of)) for of, jobs in groups.items()])
        return list(live)

    def by_stage(self) -> dict[str, Job]:
        return dict(zip(self.stages, self.jobs(), strict=True))

    def hint(self, name: str, jobs: Mapping[str, Job]) -> str:
        """Why a stage does not go on by itself, and what to do; '' if it does."""
        stage, job, resume = self.stages[name], jobs[name], f"'glmforge chain resume {self.root.name}'"
        failed = [
            need for need in stage.needs if jobs[need].state.is_over and jobs[need].state is not JobState.FINISHED
        ]
        if job.state is JobState.FINISHED:
            missing = [output for output, path in stage.outputs.items() if not path.exists()]
            return f"its outputs {', '.join(missing)} are missing" if missing else ""
        if failed and (job.state.is_over or job.state in (JobState.WAITING, JobState.HELD)):
            return f"cannot start: {failed[0]} is {jobs[failed[0]].state}; fix that, then {resume}"
        return f"waits for a submission that will never finish: {resume}" if _waits_in_vain(job) else ""

    def _kept(self, stage: StageRecord, job: Job, needed: Mapping[str, str]) -> str | None:
        """The submission of a stage that waits or runs, if it may go on; one that waits for the wrong is cancelled."""
        if job.submission is None or not is_live(job) or job.is_to_submit:
            return None
        if job.state not in (JobState.WAITING, JobState.HELD) or self._waits_rightly(stage, job, needed):
            return job.submission
        self._withdraw(stage, job.submission)
        return None

    def _waits_rightly(self, stage: StageRecord, job: Job, needed: Mapping[str, str]) -> bool:
        """Whether it waits for just these submissions, or for ones that have finished since."""
        if _waits_in_vain(job):
            return False  # whatever is noted: what an adopted submission waits for, nobody has seen
        noted: Mapping[str, str] = {}
        for event in self.own.read_events():
            if event.get("event") == "submitted" and event.get("stage") == stage.name:
                noted = event["needs"] if event.get("submission") == job.submission else {}
        return all(noted.get(need) == id_ for need, id_ in needed.items())

    def _adopted(self, stage: StageRecord, job: Job, needed: Mapping[str, str]) -> str | None:
        """A submission that the stage's files do not know of; one that waits in vain is cancelled."""
        directory, scheduler = self.directory(stage.job), self.scheduler_of(stage.launcher)
        found = adopted(directory, [submission.id for submission in directory.read_submissions()], scheduler)
        if found is None:
            return None
        note_submission(directory, found, stage.launcher)
        if _waits_in_vain(self.jobs([stage.job])[0]):
            self._withdraw(stage, found)
            return None
        self._note(stage, found, needed)
        return found

    def _submit(self, stage: StageRecord, needed: Mapping[str, str]) -> str:
        directory = self.directory(stage.job)
        id_ = submit(directory, scheduler=self.scheduler_of(stage.launcher), after=list(needed.values())).id
        self._note(stage, id_, needed)
        return id_

    def _note(self, stage: StageRecord, id_: str, needed: Mapping[str, str]) -> None:
        self.own.event("submitted", f"{stage.name} as {id_}", stage=stage.name, submission=id_, needs=dict(needed))

    def _withdraw(self, stage: StageRecord, id_: str) -> None:
        why = "to be submitted again, after what it needs now"
        self.directory(stage.job).event(CANCELLED, why, submission=id_)
        self.scheduler_of(stage.launcher).cancel(id_)


def lines_of(chain: Chain) -> list[str]:
    """A table, then a line for each stage that has something to say."""
    jobs = chain.by_stage()
    rows = [("stage", "state", "step", "needs", "job", "number")]
    for name, job in jobs.items():
        stage = chain.stages[name]
        number = (job.submission or "").partition(".")[0]
        rows.append((name, job.state.value, step_words(job.files), " ".join(stage.needs), stage.job, number))
    words = ((name, chain.hint(name, jobs) or job.why) for name, job in jobs.items())
    return [*aligned(rows), *(f"{name}: {text}" for name, text in words if text)]


def as_rows(chain: Chain) -> list[dict[str, Any]]:
    """For programs: each stage with its job as 'glmforge jobs list --json' has it."""
    jobs = chain.by_stage()
    return [
        {"stage": name, "needs": chain.stages[name].needs, "hint": chain.hint(name, jobs), **as_dict(job)}
        for name, job in jobs.items()
    ]


def _waits_in_vain(job: Job) -> bool:
    return job.state is JobState.HELD and "never" in job.why.lower()
