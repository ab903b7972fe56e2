"""The companion of a job under Slurm: a small job that brings it back when Slurm refuses its start.

Where nothing of the job ran, nothing of the job can help it. So `glmforge launch` submits a second job, of one CPU,
which is done within seconds while the controller answers: it waits (`afternotok`) until the first has failed, looks
whether that was a refused start, and if so has Slurm queue it again. When the job ends well, Slurm itself removes the
companion; when it was cancelled, has failed by itself or was stopped by its supervisor, the companion does nothing and
is gone.

A job that Slurm *holds* has not failed, and no dependency tells of it. Where a prolog that fails leads to that
(`nohold_on_prolog_fail` is not set), a second companion looks at the job now and then while it waits or runs.

    python -m glmforge_ops.jobs.requeue.companion JOBDIR SUBMISSION failure|hold
"""

import os
import shlex
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from glmforge.errors import GlmforgeError, LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.job import JobDirectory, Submission, utc_now
from glmforge_ops.jobs.requeue.cancelled import is_cancelled
from glmforge_ops.jobs.requeue.queue_again import insist, look, queue_again, tell_waiting
from glmforge_ops.jobs.requeue.refused_starts import (
    REFUSED,
    RELEASED,
    Mend,
    Mending,
    given_up,
    is_task,
    mending,
    starts_of,
    unheard_before,
)
from glmforge_ops.jobs.schedulers import slurm_small
from glmforge_ops.jobs.schedulers.commands import ask
from glmforge_ops.jobs.schedulers.slurm import Slurm
from glmforge_ops.jobs.schedulers.slurm_jobs import asking
from glmforge_ops.jobs.submit.hand_over import hand_over

COMPANION = "companion submitted"
"""The event that notes one."""

Trigger = Literal["failure", "hold"]

_HELPLESS = {"failure": "a start that Slurm refuses", "hold": "a hold of Slurm's"}
_LONGEST_S = 3600.0
_SOON_S = 60
"""Until the next look at a job of which Slurm tells nothing now: it forgets one five minutes after its end."""

_LOOK_S, _PATIENCE_S = 150.0, 300.0
"""Since it began: so long it waits for what Slurm tells of the job, and for all that Slurm is to do.

The last request may take a while more, and others may follow once: less than `slurm_small.MINUTES` in all.
"""


def accompany(job: JobDirectory, submission: Submission) -> str | None:
    """Submit what brings this submission back; in words what hinders it, which is no reason not to run the job."""
    trigger: Trigger = "failure"
    try:
        launch = job.read().launch
        most = launch.supervisor.refused_starts
        if launch.launcher != "slurm" or not (launch.supervise and launch.requeue and most):
            return None
        if launch.array or is_task(submission.id):
            return None
        _submit(job, submission.id, trigger)
        trigger = "hold"
        if slurm_small.prolog_may_hold():
            _submit(job, submission.id, trigger)
    except GlmforgeError as error:
        return _hindered(job, trigger, error)
    return None


def dismiss(job: JobDirectory) -> None:
    """The job is over, and nobody is to bring it back. A companion that Slurm does not remove ends by itself."""
    with suppress(GlmforgeError):
        if numbers := companions(job).values():
            ask("scancel", "--quiet", *numbers, environment=asking())


def look_soon(job: JobDirectory) -> None:
    """The job is about to be started again, and may be held then."""
    with suppress(GlmforgeError):
        number = companions(job).get("hold")
        if number is not None:
            slurm_small.start_in(number, round(job.read().launch.supervisor.look_every_s))


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
    began = time.monotonic()
    until = began + _PATIENCE_S
    if companions(job).get(trigger) != number:
        return Mending(Mend.NOTHING, "another companion has taken over")
    seen = look(Slurm(), submission, began + _LOOK_S)
    starts = starts_of(job, job.read_attempts())
    most = job.read().launch.supervisor.refused_starts
    found = mending(seen, starts, job.read_events(), most, cancelled=is_cancelled(job))
    if found.do in (Mend.REQUEUE, Mend.RELEASE):
        if not _noted(job, submission, found) and (count := unheard_before(seen, starts)) >= most:
            return given_up(found.why, count)
        if not queue_again(Slurm(), seen, until):  # forgotten: by another number, with companions of its own
            accompany(job, hand_over(job, again=True))
            return found
    elif found.do is Mend.GIVE_UP:
        words = f"{found.why}; 'glmforge jobs resubmit {job.name}' starts it again"
        job.event("given up", words, submission=submission)
    if found.do in (Mend.REQUEUE, Mend.RELEASE, Mend.LOOK_AGAIN):
        try:
            insist(partial(_submit, job, submission, trigger, looks_again=found.do is Mend.LOOK_AGAIN), until)
        except GlmforgeError as error:
            _hindered(job, trigger, error)
    if found.do is Mend.REQUEUE:
        tell_waiting(job, submission, until)
    return found


def _noted(job: JobDirectory, submission: str, found: Mending) -> bool:
    """Whether that could be written: not on a full disk, which is no reason to leave the job as it is."""
    event = REFUSED if found.do is Mend.REQUEUE else RELEASED
    try:
        job.event(event, f"{found.why}; the companion has it start again", submission=submission)
    except RunFileError:
        return False
    return True


def _hindered(job: JobDirectory, trigger: Trigger, error: GlmforgeError) -> str:
    """Say that there is no companion of this kind: to the job, and to the caller."""
    why = f"no companion for {_HELPLESS[trigger]}: {error}; 'glmforge jobs resubmit {job.name}' mends that"
    with suppress(RunFileError):
        job.event("companion refused", why)
    return why


def _submit(job: JobDirectory, submission: str, trigger: Trigger, *, looks_again: bool = False) -> None:
    """Raises `GlmforgeError`: then there is none, or one that does nothing, since nobody has noted it.

    Args:
        looks_again: the job may have failed already, which would start another at once.
    """
    launch = job.read().launch
    if trigger == "failure":
        options = [f"--dependency=afternotok:{submission}", "--kill-on-invalid-dep=yes"]
        options += [f"--begin=now+{_SOON_S}"] if looks_again else []
    else:
        options = [f"--begin=now+{_next_look_s(job):.0f}"]
    program = [
        sys.executable,
        "-m",
        "glmforge_ops.jobs.requeue.companion",
        str(job.root.absolute()),
        submission,
        trigger,
    ]
    number = slurm_small.submit_small(
        f"exec {shlex.join(program)}",
        launch,
        name=f"{job.name}.companion",
        log=job.root.absolute() / "companion.log",
        partition=launch.supervisor.companion_partition,
        options=options,
    )
    what = f"{number} brings {submission} back after a {trigger} of Slurm's"
    try:
        job.event(COMPANION, what, submission=submission, companion=number, trigger=trigger)
    except RunFileError:
        with suppress(LaunchError):
            ask("scancel", "--quiet", number, environment=asking())
        raise


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
        with suppress(RunFileError):
            job.event("companion failed", str(error), submission=submission)
        return 1
    print(f"{utc_now():%F %T} {job.name}: {found.do}: {found.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], "hold" if sys.argv[3:] == ["hold"] else "failure"))
