"""The companion of a job under Slurm: a small job that brings it back when Slurm refuses its start.

Where nothing of the job ran, nothing of the job can help it. So `glmforge launch` submits a second job, of one CPU and
a second: it waits (`afternotok`) until the first has failed, looks whether that was a refused start, and if so has
Slurm queue it again. When the job ends well, Slurm itself removes the companion; when it was cancelled, has failed by
its own code or was stopped by its supervisor, the companion does nothing and is gone.

A job that Slurm *holds* has not failed, and no dependency tells of it. Where a prolog that fails leads to that
(`nohold_on_prolog_fail` is not set), a second companion looks at the job now and then while it waits or runs.

    python -m glmforge.launch.companion JOBDIR SUBMISSION failure|hold
"""

import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from glmforge.errors import GlmforgeError, LaunchError
from glmforge.launch.cancel import is_cancelled
from glmforge.launch.hand_over import hand_over
from glmforge.launch.job import JobDirectory, Submission, utc_now
from glmforge.launch.schedulers import slurm_again
from glmforge.launch.schedulers.base import Seen, State
from glmforge.launch.schedulers.commands import NoAnswerError, ask
from glmforge.launch.schedulers.slurm import Slurm
from glmforge.launch.starts import REFUSED, RELEASED, Mend, Mending, mending

COMPANION = "companion submitted"
"""The event that notes one."""

Trigger = Literal["failure", "hold"]
T = TypeVar("T")

_LONGEST_S = 3600.0
_PATIENCE_S, _LOOK_S = 240.0, 1.0


def accompany(job: JobDirectory, submission: Submission) -> str | None:
    """Submit what brings this submission back; in words what hinders it, which is no reason not to run the job."""
    launch = job.read().launch
    most = launch.supervisor.refused_starts
    if launch.launcher != "slurm" or not (launch.supervise and launch.requeue and most) or launch.array:
        return None
    try:
        _submit(job, submission.id, "failure")
        if slurm_again.prolog_may_hold():
            _submit(job, submission.id, "hold")
    except LaunchError as error:
        why = f"no companion: {error}; a start that Slurm refuses has to be brought back by 'glmforge jobs resubmit'"
        job.event("companion refused", why)
        return why
    return None


def dismiss(job: JobDirectory) -> None:
    """The job is over, and nobody is to bring it back. A companion that Slurm does not remove ends by itself."""
    with suppress(LaunchError):
        for number in companions(job).values():
            ask("scancel", "--quiet", number)


def look_soon(job: JobDirectory) -> None:
    """The job is about to be started again, and may be held then."""
    number = companions(job).get("hold")
    if number is not None:
        with suppress(LaunchError):
            slurm_again.start_in(number, round(job.read().launch.supervisor.look_every_s))


def companions(job: JobDirectory) -> dict[Trigger, str]:
    """The newest of each kind, of the newest submission."""
    events = job.read_events()
    newest = [event.get("submission") for event in events if event.get("event") == "submitted"][-1:]
    found: dict[Trigger, str] = {}
    for event in events:
        trigger, number = event.get("trigger"), str(event.get("companion"))
        if event.get("event") == COMPANION and event.get("submission") in newest and number.isdecimal():
            found["hold" if trigger == "hold" else "failure"] = number
    return found


def attend(job: JobDirectory, submission: str, trigger: Trigger, number: str) -> Mending:
    """Look at the job and do what it needs, as the companion `number`. Raises `GlmforgeError`."""
    if companions(job).get(trigger) != number:
        return Mending(Mend.NOTHING, "another companion has taken over")
    seen = look(submission)
    most = job.read().launch.supervisor.refused_starts
    found = mending(seen, job.read_events(), job.read_attempts(), most, cancelled=is_cancelled(job))
    if found.do in (Mend.REQUEUE, Mend.RELEASE):
        event = REFUSED if found.do is Mend.REQUEUE else RELEASED
        job.event(event, f"{found.why}; the companion has it start again", submission=submission)
        if not _insist(lambda: Slurm().again(seen)):  # forgotten: by another number, with companions of its own
            accompany(job, hand_over(job, again=True))
            return found
    elif found.do is Mend.GIVE_UP:
        job.event(
            "given up", f"{found.why}; 'glmforge jobs resubmit {job.name}' starts it again", submission=submission
        )
    if found.do in (Mend.REQUEUE, Mend.RELEASE, Mend.LOOK_AGAIN):
        _insist(lambda: _submit(job, submission, trigger))
    return found


def look(submission: str) -> Seen:
    """The job, as Slurm tells of it; one that is about to end, and a controller that is down, are waited for."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        seen = Slurm().look([submission])[submission]
        no_answer = seen.state is State.UNKNOWN and "forgotten" not in seen.reason
        if (seen.state is not State.ENDING and not no_answer) or time.monotonic() >= until:
            return seen
        time.sleep(_LOOK_S)


def _insist(do: Callable[[], T]) -> T:
    """The controller may be down for a while. Raises `LaunchError` if it stays so."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return do()
        except NoAnswerError:
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_S)


def _submit(job: JobDirectory, submission: str, trigger: Trigger) -> None:
    launch = job.read().launch
    if trigger == "failure":
        options = [f"--dependency=afternotok:{submission}", "--kill-on-invalid-dep=yes"]
    else:
        options = [f"--begin=now+{_next_look_s(job):.0f}"]
    program = [sys.executable, "-m", "glmforge.launch.companion", str(job.root.absolute()), submission, trigger]
    number = slurm_again.submit_small(
        f"exec {shlex.join(program)}",
        launch,
        name=f"{job.name}.companion",
        log=job.root.absolute() / "companion.log",
        partition=launch.supervisor.companion_partition,
        options=options,
    )
    what = f"{number} brings {submission} back after a {trigger} of Slurm's"
    job.event(COMPANION, what, submission=submission, companion=number, trigger=trigger)


def _next_look_s(job: JobDirectory) -> float:
    """Ever longer until the next look at a job that just waits, or runs."""
    every_s, events = job.read().launch.supervisor.look_every_s, job.read_events()
    looks = 0
    for event in reversed(events):
        if event.get("event") != COMPANION or event.get("trigger") != "hold":
            if event.get("event") not in (COMPANION, "submitted"):
                break
            continue
        looks += 1
    return max(every_s, min(every_s * 2.0 ** min(looks, 60), _LONGEST_S))


def main(root: Path, submission: str, trigger: Trigger) -> int:
    """The exit status of the companion that this process is."""
    job = JobDirectory(root)
    try:
        found = attend(job, submission, trigger, os.environ.get("SLURM_JOB_ID", ""))
    except GlmforgeError as error:
        print(f"{utc_now():%F %T} {job.name}: {error}", file=sys.stderr)
        return 1
    print(f"{utc_now():%F %T} {job.name}: {found.do}: {found.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], "hold" if sys.argv[3:] == ["hold"] else "failure"))
