"""Waiting for other threads without missing a signal, and `map` over a few threads.

Python's handler of a signal, Ctrl-C's included, runs in the main thread between two bytecodes. One that waits for a
lock is woken for it only by a signal that arrives while it waits: one that comes just before, when the thread has
given up the interpreter's lock and does not sleep yet, or that the system gives to another thread, is heeded when
the lock is free, which may be never. That is no rare case on a busy machine, where a thread is often stopped just
where it gives up the interpreter's lock. What may take long (a future, a thread, a queue) is therefore waited for in
short steps: between two of them handlers run.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

STEP_S = 0.2
"""A signal is heeded after so many seconds at the latest."""


def take(queue: SimpleQueue[T]) -> T:
    """The next item of a queue, when it is there."""
    while True:
        try:
            return queue.get(timeout=STEP_S)
        except Empty:
            continue


def as_done(futures: Collection[Future[T]]) -> Iterator[Future[T]]:
    """Each future when it is done, failed or cancelled, in the order of that."""
    done: SimpleQueue[Future[T]] = SimpleQueue()
    for future in futures:
        future.add_done_callback(done.put)
    for _ in futures:
        yield take(done)


def result_of(future: Future[T]) -> T:
    """`future.result()`, when it is there."""
    return next(as_done([future])).result()


def join(thread: threading.Thread) -> None:
    """Until the thread has ended."""
    while thread.is_alive():
        thread.join(STEP_S)


def map_in_threads(
    function: Callable[[T], R],
    items: Iterable[T],
    num_threads: int,
    *,
    at_start: Callable[[], object] | None = None,
) -> Iterator[R]:
    """`map`, with calls of several items at once, for calls that wait for disks or networks; results in order.

    An error of a call, or an interrupt, ends it: calls that have begun are waited for, others are not made. `at_start`
    is called in each thread first.
    """
    with ThreadPoolExecutor(num_threads, initializer=at_start) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in futures:
                yield result_of(future)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
