"""A chain run, gone on with, looked at and cancelled; what has been done stands in its jobs and its events.

Under a scheduler every stage is submitted at once, with `afterok` on the submissions of what it needs; elsewhere, and
where stages have different launchers, they are started from here, one after the other.

Going on: what has finished stays; what waits or runs stays too, if it waits for the right submissions. The others are
submitted, again if need be. A stage that is requeued keeps its number, and with it what waits for it. One that fails
leaves those behind it waiting for ever ("DependencyNeverSatisfied": Slurm does not end them by itself), and one that
was submitted again by hand has another number: then those that wait are cancelled, and submitted again.

One who was killed between a submission and the note of it leaves a job that nothing knows. It is found by its name and
its directory, and adopted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.observe.run import write_text
from glmforge.runtime.lease import Lease
from glmforge_ops.jobs.cancelled import CANCELLED, Cancelling
from glmforge_ops.jobs.chain.record import ChainDirectory, ChainRecord, StageRecord
from glmforge_ops.jobs.do_all import do_all
from glmforge_ops.jobs.in_turn import Runner, Turn, is_to_submit
from glmforge_ops.jobs.job import JobDirectory, Submission
from glmforge_ops.jobs.script.render import Script, render
from glmforge_ops.jobs.state.find import Job, SchedulerOf, find_jobs
from glmforge_ops.jobs.state.job_state import JobState
from glmforge_ops.jobs.submit.hand_over import hand_over, note_submission
from glmforge_ops.jobs.submit.unnoted import submissions_in

WITH_DEPENDENCIES = ("slurm", "pbs")

Tell = Callable[[str, str], None]


@dataclass(frozen=True)
class StageState:
    """A stage as it is; `hint`: what keeps it from going on, if it does not by itself."""

    stage: StageRecord
    job: Job
    hint: str = ""


@dataclass
class Chain:
    """A chain that has been written."""

    directory: ChainDirectory
    scheduler_of: SchedulerOf

    def __post_init__(self) -> None:
        self.record: ChainRecord = self.directory.read()

    @property
    def is_submitted_at_once(self) -> bool:
        launchers = {stage.launcher for stage in self.record.stages}
        return len(launchers) == 1 and launchers <= set(WITH_DEPENDENCIES)

    @property
    def _resume(self) -> str:
        return f"glmforge chain resume {self.record.name}"

    def states(self) -> list[StageState]:
        """Of every stage, in order."""
        jobs = self._jobs()
        return [StageState(stage, jobs[stage.name], self._hint(stage, jobs)) for stage in self.record.stages]

    def submit(self, tell: Tell) -> None:
        """Submit every stage that has not finished and is not on its way. Raises `HeldError` if somebody else does."""
        with Lease(self.directory.root, "glmforge chain"):
            jobs = self._jobs()
            ids: dict[str, str] = {}
            """Stage -> its submission, of those that have not finished."""
            for stage in self.record.stages:
                job = jobs[stage.name]
                needed = {need: ids[need] for need in stage.needs if need in ids}
                if job.state is JobState.DAMAGED:
                    raise LaunchError(f"stage {stage.name}: {job.why}")
                if job.state is JobState.FINISHED:
                    tell(stage.name, "has finished already")
                elif adopted := self._adopted(stage, job):
                    tell(stage.name, f"is {adopted.id}, as an earlier start had submitted it")
                    self._note(stage, adopted.id, needed)
                    ids[stage.name] = adopted.id
                elif kept := self._kept(stage, job, needed):
                    tell(stage.name, f"is {job.state} as {kept}")
                    ids[stage.name] = kept
                else:
                    submission = self._submit(stage, needed)
                    after = f", after {', '.join(needed)}" if needed else ""
                    tell(stage.name, f"submitted as {submission.id}{after}")
                    ids[stage.name] = submission.id

    def run_here(self, tell: Tell) -> dict[str, JobState]:
        """Run one stage after the other; the state of each at the end. Raises `HeldError` if somebody else does."""
        with Lease(self.directory.root, "glmforge chain"):
            own = self.directory.own
            began = len(own.read_events())
            own.event("started", "from here")
            by_job = {stage.job: stage for stage in self.record.stages}
            runner = Runner(
                look=self._states,
                submit=lambda name: self._start(by_job[name], tell),
                cancel=lambda name: self._cancel([self._jobs()[by_job[name].name]], Cancelling()),
                tell=lambda name, words: tell(by_job[name].name, words),
                is_wanted=lambda: not any(event.get("event") == CANCELLED for event in own.read_events()[began:]),
            )
            turns = [
                Turn(stage.job, tuple(self.record.stage(need).job for need in stage.needs))
                for stage in self.record.stages
            ]
            ended = runner.run(turns)
        return {by_job[name].name: state for name, state in ended.items()}

    def cancel(self) -> list[str]:
        """Cancel every stage that waits or runs, the last ones first; their names."""
        cancelling = Cancelling()
        cancelling.note_whole(self.directory.own, "the whole chain")
        live = [told for told in self.states() if told.job.is_to_cancel]
        self._cancel([told.job for told in reversed(live)], cancelling)  # else the next one might start in between
        return [told.stage.name for told in live]

    def _jobs(self) -> dict[str, Job]:
        found = find_jobs(self.directory.root.parent, [stage.job for stage in self.record.stages], self.scheduler_of)
        return dict(zip([stage.name for stage in self.record.stages], found, strict=True))

    def _states(self, names: Sequence[str]) -> dict[str, tuple[JobState, str]]:
        found = find_jobs(self.directory.root.parent, names, self.scheduler_of)
        return {job.name: (job.state, job.why) for job in found}

    def _start(self, stage: StageRecord, tell: Tell) -> None:
        submission = hand_over(self.directory.stage(stage), mend=self._resume)
        self._note(stage, submission.id, {})

    def _kept(self, stage: StageRecord, job: Job, needed: Mapping[str, str]) -> str | None:
        """The submission of a stage that waits or runs, if it may go on; one that waits for the wrong is cancelled."""
        if not _is_live(job):
            return None
        id_ = _submission(job)
        assert id_ is not None, "what is on its way was submitted"
        if job.state not in (JobState.WAITING, JobState.HELD) or self._waits_rightly(stage, job, needed):
            return id_
        self._withdraw(stage, id_)
        return None

    def _withdraw(self, stage: StageRecord, id_: str) -> None:
        detail = "to be submitted again, after what it needs now"
        self.directory.stage(stage).event(CANCELLED, detail, submission=id_)
        self.scheduler_of(stage.launcher).cancel(id_)

    def _waits_rightly(self, stage: StageRecord, job: Job, needed: Mapping[str, str]) -> bool:
        """Whether it waits for just these submissions, or for ones that have finished since."""
        if _waits_in_vain(job):
            return False  # whatever is noted: what is noted of an adopted submission, nobody has seen
        if not needed:
            return True
        noted = self._noted(stage, _submission(job))
        return noted is not None and all(noted.get(need) == id_ for need, id_ in needed.items())

    def _noted(self, stage: StageRecord, id_: str | None) -> dict[str, str] | None:
        """The submissions that a stage's submission waits for."""
        for event in reversed(self.directory.own.read_events()):
            if event.get("event") == "submitted" and event.get("stage") == stage.name:
                return dict(event["needs"]) if event.get("submission") == id_ else None
        return None

    def _note(self, stage: StageRecord, id_: str, needed: Mapping[str, str]) -> None:
        self.directory.own.event(
            "submitted", f"{stage.name} as {id_}", stage=stage.name, submission=id_, needs=dict(needed)
        )

    def _submit(self, stage: StageRecord, needed: Mapping[str, str]) -> Submission:
        directory = self.directory.stage(stage)
        launch = with_dependency(directory.read().launch, list(needed.values()))
        again = bool(directory.read_attempts())
        submission = hand_over(
            _with_script_of(directory, launch),
            launch=launch,
            scheduler=self.scheduler_of(stage.launcher),
            again=again,
            mend=self._resume,
        )
        self._note(stage, submission.id, needed)
        return submission

    def _adopted(self, stage: StageRecord, job: Job) -> Submission | None:
        """Of a stage that is not on its way as far as its files know: a submission that they do not know of.

        One that waits in vain, for an earlier submission of what it needs, is cancelled.
        """
        if stage.launcher != "slurm" or _is_live(job):
            return None
        directory = self.directory.stage(stage)
        known = {submission.id for submission in directory.read_submissions()}
        lost = [id_ for id_ in submissions_in(directory) if id_ not in known]
        if not lost:
            return None
        submission = note_submission(directory, lost[-1], stage.launcher)
        if _waits_in_vain(self._jobs()[stage.name]):
            self._withdraw(stage, submission.id)
            return None
        return submission

    def _cancel(self, jobs: Sequence[Job], cancelling: Cancelling) -> None:
        """In this order; one that cannot be cancelled keeps none of the others from it."""
        do_all([*(partial(self._cancel_one, job, cancelling) for job in jobs), cancelling.finish])

    def _cancel_one(self, job: Job, cancelling: Cancelling) -> None:
        if job.files is None or job.files.submission is None:
            return
        cancelling.note(job.directory, job.files.submission)
        self.scheduler_of(job.files.description.launch.launcher).cancel(job.files.submission.id)

    def _hint(self, stage: StageRecord, jobs: Mapping[str, Job]) -> str:
        """Why a stage does not go on by itself, and what to do."""
        job = jobs[stage.name]
        failed = [
            need for need in stage.needs if jobs[need].state.is_over and jobs[need].state is not JobState.FINISHED
        ]
        resume = f"'{self._resume}'"
        if job.state is JobState.FINISHED:
            missing = [name for name, path in stage.outputs.items() if not path.exists()]
            return f"its outputs {', '.join(missing)} are not there" if missing else ""
        if failed and (job.state.is_over or job.state in (JobState.WAITING, JobState.HELD)):
            return f"cannot start: {failed[0]} is {jobs[failed[0]].state}; mend that, then {resume}"
        if _waits_in_vain(job):
            return f"waits for a submission that will never finish: {resume}"
        return ""


def with_dependency(launch: LaunchConfig, ids: Sequence[str]) -> LaunchConfig:
    """The options, with a start only after all of these have finished well."""
    return launch.model_copy(update={"dependency": f"afterok:{':'.join(ids)}" if ids else None})


def _with_script_of(job: JobDirectory, launch: LaunchConfig) -> JobDirectory:
    """The job, with a script of these options beside its own, which 'glmforge jobs resubmit' is to find as it was."""
    chained = JobDirectory(job.root)
    chained.script = job.root / "script-chained.sh"
    description = job.read().model_copy(update={"launch": launch})
    write_text(chained.script, render(Script.of(description, job.root)))
    return chained


def _is_live(job: Job) -> bool:
    return not job.state.is_over and not is_to_submit(job) and job.state is not JobState.DAMAGED


def _submission(job: Job) -> str | None:
    return None if job.files is None or job.files.submission is None else job.files.submission.id


def _waits_in_vain(job: Job) -> bool:
    return job.state is JobState.HELD and "never" in job.why.lower()
