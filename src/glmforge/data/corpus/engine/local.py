"""Tasks in processes of this machine.

The pool lives as long as the run: starting one anew for each of a dozen steps would cost more than many a step. When a
task fails, those that run are waited for, because they are work done; when the user interrupts, they are killed,
because a task may take an hour and is done again from its beginning as after any other death.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from glmforge.data.corpus.engine.execution import Executor, TaskDone
from glmforge.data.corpus.engine.task import PlannedStep, run_task
from glmforge.errors import DataError


class LocalExecutor(Executor):
    """A pool of processes, started with the first step and kept to the last; one worker is this process itself."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def run(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> None:
        if self._workers == 1:
            for task in tasks:
                run_task(planned, task)
                task_done(task)
            return
        try:
            self._run_in_pool(planned, tasks, task_done)
        except BrokenProcessPool as error:
            raise DataError(
                f"{planned.step.name}: a worker process died, perhaps for want of memory: run again with fewer workers"
            ) from error

    def _run_in_pool(self, planned: PlannedStep, tasks: Sequence[int], task_done: TaskDone) -> None:
        """A few tasks wait in the pool at a time: an error is to stop the step soon."""
        pool = self._pool = self._pool or ProcessPoolExecutor(
            self._workers, multiprocessing.get_context("spawn"), initializer=_live_no_longer_than_parent
        )
        waiting, running = iter(tasks), dict[Future[None], int]()

        def submit(count: int) -> None:
            for _, task in zip(range(count), waiting, strict=False):
                with _interrupts_held():
                    running[pool.submit(run_task, planned, task)] = task

        submit(2 * self._workers)
        try:
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    future.result()
                    task_done(task)
                    submit(1)
        finally:
            for future in running:
                future.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        workers = list(self._pool._processes.values())  # Python 3.14 has kill_workers()
        if isinstance(error, KeyboardInterrupt):
            _kill(workers)
        try:
            self._pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:  # while other tasks than the failed one are waited for
            _kill(workers)
            raise


def _kill(processes: Iterable[BaseProcess]) -> None:
    for process in processes:
        process.kill()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C goes to all processes of a terminal: a worker that starts meanwhile is born deaf to it (and stays so)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live_no_longer_than_parent() -> None:
    """A killed run must not leave workers behind that write where the next run works; Ctrl-C is the parent's matter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
