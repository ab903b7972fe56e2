"""Work done by a few threads at once, for calls that wait for disks or networks and release the interpreter's lock."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from glmforge.runtime.waiting import result_of

T = TypeVar("T")
R = TypeVar("R")


def map_in_threads(
    function: Callable[[T], R],
    items: Iterable[T],
    num_threads: int,
    *,
    at_start: Callable[[], object] | None = None,
) -> Iterator[R]:
    """`map`, with calls of several items at once; results come in the order of the items.

    What a call raises, or an interrupt, ends it: calls that have begun are waited for, others are not made. `at_start`
    is called in each thread first.
    """
    with ThreadPoolExecutor(num_threads, initializer=at_start) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in futures:
                yield result_of(future)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
