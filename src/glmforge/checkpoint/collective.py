"""Let every rank see the same outcome of a step, good or bad.

Saving and loading are steps that all ranks take together. If one of them fails (a full disk, a missing
permission) and the others do not hear of it, they wait in the next collective until its timeout. So each step
gathers what became of it: either every rank continues, or every rank raises the same `CheckpointError`. Without
a process group the same code runs with one rank and no communication.

Collectives go over the default group, in a thread that saves in the background over a group of its own: two threads
that used one group would pair off each other's messages.

Only failures that a user can fix are passed on this way. A defect (a `TypeError`, say) is raised where it happens;
the launcher then ends the other ranks.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from glmforge.errors import CheckpointError
from glmforge.runtime.lease import LeaseLostError
from glmforge.runtime.os_errors import describe_os_error

T = TypeVar("T")

_MEETING_S = 1.0  # how long ranks work between two questions whether all are done
_NAMED_RANKS = 3  # an error message names this many failed ranks and counts the others

# A new thread begins with the default: what one thread sets no other sees.
_group: ContextVar[dist.ProcessGroup | None] = ContextVar("_group", default=None)


@dataclass(frozen=True)
class _Failure:
    message: str


@contextmanager
def communicating_over(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Within, this thread's collectives go over `group`, which has all ranks; None is the default group."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def current_group() -> dist.ProcessGroup | None:
    """The group that this thread communicates over; None is the default group."""
    return _group.get()


def rank() -> int:
    """This process's rank in the default process group; 0 without one."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of ranks of the default process group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


def run_together(action: Callable[[], T]) -> list[T]:
    """Call `action` on every rank and return all ranks' (picklable) results, rank 0 first.

    If it raises `OSError`, `CheckpointError` or `LeaseLostError` on any rank, every rank raises one and the same
    `CheckpointError`.
    """
    outcomes = all_gather(_try(action))
    raise_failures({r: o.message for r, o in enumerate(outcomes) if isinstance(o, _Failure)})
    return [o for o in outcomes if not isinstance(o, _Failure)]


def run_each(action: Callable[[], T]) -> T:
    """Call `action` on every rank and return this rank's own result, which is not sent to the others.

    Failures are those of all, as in `run_together`.
    """
    outcome = _try(action)
    failures = all_gather(outcome if isinstance(outcome, _Failure) else None)
    raise_failures({r: failure.message for r, failure in enumerate(failures) if failure is not None})
    assert not isinstance(outcome, _Failure)
    return outcome


def run_each_unhurried(action: Callable[[], T]) -> T:
    """As `run_each`, for what takes some ranks longer than the others can wait in a collective, such as copying files.

    `action` runs in its own thread, without communication; meanwhile the ranks synchronise once a second.
    """
    outcome: Future[T] = Future()

    def act() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:  # noqa: BLE001 - raised by `result` below
            outcome.set_exception(error)

    thread = threading.Thread(target=act, daemon=True)  # an interrupt does not wait for its end
    thread.start()
    thread.join(_MEETING_S)
    while not all(all_gather(outcome.done())):
        thread.join(_MEETING_S)
    return run_each(outcome.result)


def run_on_rank_zero(action: Callable[[], T]) -> T:
    """Call `action` on rank 0 only; every rank returns its result or raises its `CheckpointError`."""
    result = run_together(lambda: action() if rank() == 0 else None)[0]
    return result  # type: ignore[return-value]  # the result of rank 0, which did call it


def raise_failures(message_of_rank: Mapping[int, str]) -> None:
    """Raise one `CheckpointError` for what the given ranks report; do nothing without reports."""
    if not message_of_rank:
        return
    if world_size() == 1 or (len(message_of_rank) == world_size() and len(set(message_of_rank.values())) == 1):
        raise CheckpointError(message_of_rank[0])
    named = [f"rank {r}: {message}" for r, message in sorted(message_of_rank.items())]
    others = len(named) - _NAMED_RANKS
    raise CheckpointError("; ".join(named[:_NAMED_RANKS]) + (f"; and {others} more ranks" if others > 0 else ""))


def all_gather(value: T) -> list[T]:
    """The (picklable) values of all ranks, rank 0 first."""
    if not dist.is_initialized():
        return [value]
    values: list[T | None] = [None] * world_size()
    dist.all_gather_object(values, value, group=_group.get())
    return values  # type: ignore[return-value]  # every place has been filled


def gather_distinct(value: T) -> list[T]:
    """The different values among those of all ranks, in the order of ranks.

    Values are picklable, and equal ones have the same `repr`. Of ranks with equal values only the first sends its:
    in a job of thousands of ranks there are as many values as pipeline stages.
    """
    digests = all_gather(hashlib.sha256(repr(value).encode()).digest())
    return [broadcast(value, digests.index(digest)) for digest in dict.fromkeys(digests)]


def broadcast(value: T, source: int) -> T:
    """The (picklable) value of rank `source`."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=source, group=_group.get())
    return values[0]


def _try(action: Callable[[], T]) -> T | _Failure:
    try:
        return action()
    except OSError as error:
        return _Failure(describe_os_error(error))
    except (CheckpointError, LeaseLostError) as error:
        return _Failure(str(error))
