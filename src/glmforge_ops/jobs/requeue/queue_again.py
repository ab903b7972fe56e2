"""A job put back into its scheduler's queue under its number, while the controller comes and goes.

Each request is repeated by itself, so that what was done is not asked for again. One that got no answer may have been
carried out: the job is looked at before it is asked for once more.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from glmforge.errors import LaunchError
from glmforge.observe.record_files import RunFileError
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.schedulers.base import Scheduler, Seen, State
from glmforge_ops.jobs.schedulers.commands import NoAnswerError
from glmforge_ops.jobs.schedulers.slurm_again import wait_anew, waiting_in_vain

T = TypeVar("T")

_PAUSE_S = 1.0


def look(scheduler: Scheduler, submission: str, until: float) -> Seen:
    """The job, as its scheduler tells of it; one that is about to end, and a controller that is down, are waited for.

    Args:
        until: by the monotonic clock; then it is taken as it is.
    """
    while True:
        seen = scheduler.look([submission])[submission]
        settled = seen.state is not State.ENDING and (seen.state is not State.UNKNOWN or seen.is_forgotten)
        if settled or time.monotonic() >= until:
            return seen
        time.sleep(_PAUSE_S)


def insist(do: Callable[[], T], until: float) -> T:
    """For what does no harm if it is done twice. Raises `NoAnswerError` if the controller stays down; other errors."""
    while True:
        try:
            return do()
        except NoAnswerError:
            if time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_S)


def queue_again(scheduler: Scheduler, seen: Seen, until: float) -> bool:
    """Put a job back that has ended, or is held; False if its scheduler has forgotten it. Raises `LaunchError`."""
    while True:
        try:
            return scheduler.again(seen)
        except LaunchError as error:
            if _is_back(seen, look(scheduler, seen.id, until)):
                return True
            if not isinstance(error, NoAnswerError) or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_S)


def tell_waiting(job: JobDirectory, submission: str, until: float) -> list[str]:
    """Have what waited for the success of a job of Slurm's wait again; in words what could not be told.

    Those are events, too, and no reason not to go on.
    """
    untold = []
    try:
        waiting = insist(partial(waiting_in_vain, submission), until)
        for number, dependency in waiting.items():
            try:
                insist(partial(wait_anew, number, dependency), until)
            except NoAnswerError:
                raise
            except LaunchError as error:
                mend = f"'scontrol update JobId={number} Dependency={dependency}'"
                untold.append(f"{number} waits for {submission} in vain ({error}); {mend} mends it")
    except LaunchError as error:
        untold.append(f"what waits for {submission} may wait in vain ({error}); 'squeue --me' tells")
    for words in untold:
        with suppress(RunFileError):
            job.event("waits in vain", words, submission=submission)
    return untold


def _is_back(before: Seen, now: Seen) -> bool:
    """Whether a job that was over, or held, is on its way again."""
    if now.restarts > before.restarts:
        return True
    return not now.state.is_over and now.state not in (State.UNKNOWN, before.state)
