"""Work for several processes, its results in order.

Only a few units of work are under way at a time, so that input of any size passes through constant memory. Processes
rather than threads: what encodes text shares one cache between threads and scales poorly. They are spawned, not forked,
which is safe next to threads and on every platform. A program that asks for more than one worker therefore needs the
usual `if __name__ == "__main__":` guard.
"""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from glmforge.errors import DataError
from glmforge.runtime.waiting import result_of

UNITS_PER_WORKER = 2

_Unit = TypeVar("_Unit")
_Result = TypeVar("_Result")


def in_processes(
    do: Callable[[_Unit], _Result],
    work: Iterable[_Unit],
    num_workers: int,
    start: Callable[..., None],
    *arguments: Any,
) -> Iterator[_Result]:
    """What `do` makes of each unit of work, in order.

    Args:
        do: a function of a module, called in the workers.
        work: read as workers become free.
        num_workers: processes.
        start: called once in each worker, with `arguments`.

    Raises:
        DataError: a worker died; and whatever `do` raises.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, spawn, start, arguments) as pool:
        try:
            yield from _in_order(pool, do, work, num_workers * UNITS_PER_WORKER)
        except BrokenProcessPool as error:
            raise DataError(
                "an encoding process died, perhaps for lack of memory (use fewer workers) or of an "
                "'if __name__ == \"__main__\"' guard in the calling script (add it)"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, do: Callable[[_Unit], _Result], work: Iterable[_Unit], num_under_way: int
) -> Iterator[_Result]:
    under_way: deque[Future[_Result]] = deque()
    for unit in work:
        under_way.append(pool.submit(do, unit))
        if len(under_way) >= num_under_way:
            yield result_of(under_way.popleft())
    while under_way:
        yield result_of(under_way.popleft())
