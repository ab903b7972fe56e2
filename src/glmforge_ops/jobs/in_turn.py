"""Jobs run one after the other from here, some at a time: for launchers that have no queue of their own.

What has finished is not run again, and what runs already (another runner was ended, its jobs went on) is waited for. A
job starts when all that it needs has finished; if one of those did not, it is left out. The state is the jobs' own,
from their files and the scheduler: nothing is kept here.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from glmforge.errors import GlmforgeError
from glmforge_ops.jobs.state.find import Job
from glmforge_ops.jobs.state.job_state import JobState

_LOOK_EVERY_S = 1.0

States = Mapping[str, tuple[JobState, str]]
"""Of jobs, by name, each with the reason."""


@dataclass(frozen=True)
class Turn:
    """A job, and those that must have finished before."""

    job: str
    needs: tuple[str, ...] = ()


@dataclass
class Runner:
    """How jobs are started and looked at.

    Attributes:
        look: the states of the jobs with these names.
        submit: starts a job.
        cancel: asks a job to end.
        tell: is told of every change: the job's name, and what there is to say.
        is_wanted: whether to start further jobs.
        pause: between two looks.
    """

    look: Callable[[Sequence[str]], States]
    submit: Callable[[str], None]
    cancel: Callable[[str], None]
    tell: Callable[[str, str], None] = lambda job, words: None
    is_wanted: Callable[[], bool] = lambda: True
    pause: Callable[[], None] = field(default=lambda: time.sleep(_LOOK_EVERY_S))

    def run(self, turns: Sequence[Turn], at_once: int = 1) -> dict[str, JobState]:
        """Run them all; the state of each when nothing is left to do. Ctrl-C ends those that run, and this."""
        self._turns = {turn.job: turn for turn in turns}
        self._states: dict[str, JobState] = {}
        self._submitted = set[str]()
        self._waited_for = set[str]()
        self._left_out = set[str]()
        try:
            while not self._is_done(at_once):
                self.pause()
        except KeyboardInterrupt:
            for job in self._running():
                self.tell(job, "is asked to end")
                self._ask_to_end(job)
            raise
        return self._states

    def _ask_to_end(self, job: str) -> None:
        """One that cannot be asked keeps none of the others from it."""
        try:
            self.cancel(job)
        except GlmforgeError as error:
            self.tell(job, f"could not be asked to end: {error}")

    def _is_done(self, at_once: int) -> bool:
        self._look()
        free = at_once - len(self._running())
        ready = [job for job in self._turns if self._is_ready(job)] if self.is_wanted() else []
        for job in ready[: max(0, free)]:
            self.tell(job, "starts")
            self.submit(job)
            self._submitted.add(job)
            self._states[job] = JobState.STARTING
        return not ready and not self._running()

    def _look(self) -> None:
        open_ = [job for job in self._turns if not self._is_settled(job)]
        for job, (state, why) in self.look(open_).items():
            before = self._states.get(job)
            self._states[job] = state
            if before is None and not state.is_over:
                self.tell(job, f"is {state} already, and is waited for{': ' if why else ''}{why}")
                self._waited_for.add(job)
            elif (before is None and state is JobState.FINISHED) or (before is not None and before is not state):
                self.tell(job, ": ".join(filter(None, [f"{state}", why])))

    def _is_settled(self, job: str) -> bool:
        """Whether nothing more is to come of it."""
        state = self._states.get(job)
        if state in (JobState.FINISHED, JobState.DAMAGED) or job in self._left_out:
            return True
        return state is not None and state.is_over and job in self._submitted | self._waited_for

    def _running(self) -> list[str]:
        return [job for job, state in self._states.items() if not state.is_over and state is not JobState.DAMAGED]

    def _is_ready(self, job: str) -> bool:
        if self._is_settled(job) or not self._states[job].is_over:
            return False
        needs = self._turns[job].needs
        missing = [need for need in needs if self._states.get(need) is not JobState.FINISHED]
        hopeless = [need for need in missing if self._is_settled(need)]
        if hopeless:
            self._left_out.add(job)
            self.tell(job, f"is left out: {hopeless[0]} has not finished")
        return not missing


def is_to_submit(job: Job) -> bool:
    """Whether the job has not finished, and is not on its way.

    One that its scheduler has forgotten is not; if it runs after all, its supervisor's lease refuses a second one. One
    whose scheduler does not answer may be.
    """
    if job.state is JobState.UNKNOWN:
        return job.seen is not None and job.seen.is_forgotten
    return job.state.is_over and job.state is not JobState.FINISHED
