"""Tasks in processes of this machine.

The pool lives as long as the run: starting one anew for each of a dozen steps would cost more than many a step. When a
task fails, those that run are waited for, because they are work done; when the user interrupts, they are killed,
because a task may take an hour and is done again from its beginning as after any other death. When a process dies, the
pool takes the others down with it; each of their tasks is then run by itself (`execution.py`). One worker is this
process itself, which cannot outlive its own death: what kills workers needs two.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from glmforge.errors import DataError
from glmforge.runtime.waiting import as_done, take
from glmforge_corpus.pipeline.execution import Executor, TaskDone, begun
from glmforge_corpus.pipeline.task import PlannedStep, run_task


class LocalExecutor(Executor):
    """A pool of processes, started with the first step and kept to the last; one worker is this process itself."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._unfinished: list[Future[None]] = []

    def attempt(self, planned: PlannedStep, tasks: Sequence[int], log_dir: Path, task_done: TaskDone) -> dict[int, str]:
        if self._workers == 1:
            for task in tasks:
                run_task(planned, task)
                task_done(task)
            return {}
        try:
            self._run_in_pool(planned, tasks, task_done)
        except BrokenProcessPool as error:
            how = self._shutdown_dead_pool()
            died = begun(planned, tasks)
            if not died:
                raise DataError(f"{planned.step.name}: worker processes die at startup ({how})") from error
            return dict.fromkeys(died, how)
        return {}

    def _shutdown_dead_pool(self) -> str:
        """Forget a pool of which a process has died, when all its processes are gone; how the first of them died.

        The pool ends the others by SIGTERM, so that any other way to die tells of the one that broke it.
        """
        assert self._pool is not None
        workers = list(self._pool._processes.values())
        self._pool.shutdown()
        self._pool = None
        codes = [worker.exitcode for worker in workers if worker.exitcode]
        telling = next((code for code in codes if code != -signal.SIGTERM), codes[0] if codes else None)
        return _way_to_die(telling)

    def _run_in_pool(self, planned: PlannedStep, tasks: Sequence[int], task_done: TaskDone) -> None:
        """A few tasks wait in the pool at a time: an error is to stop the step soon."""
        pool = self._pool = self._pool or ProcessPoolExecutor(
            self._workers, multiprocessing.get_context("spawn"), initializer=_live_no_longer_than_parent
        )
        waiting, running = iter(tasks), dict[Future[None], int]()
        ended: SimpleQueue[Future[None]] = SimpleQueue()

        def submit(count: int) -> None:
            for _, task in zip(range(count), waiting, strict=False):
                with _interrupts_held():
                    future = pool.submit(run_task, planned, task)
                    running[future] = task
                    future.add_done_callback(ended.put)

        submit(2 * self._workers)
        try:
            while running:
                future = take(ended)
                task = running.pop(future)
                future.result()
                task_done(task)
                submit(1)
        finally:
            self._unfinished = [future for future in running if not future.cancel()]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        workers = list(self._pool._processes.values())  # Python 3.14 has kill_workers()
        if isinstance(error, KeyboardInterrupt):
            _kill(workers)
        try:
            for _ in as_done(self._unfinished):
                pass
            self._pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:  # while other tasks than the failed one are waited for
            _kill(workers)
            raise


def _way_to_die(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit status {exit_code}"
    name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else "unknown"
    why = ", probably out of memory" if -exit_code == signal.SIGKILL else ""
    return f"signal {-exit_code}, {name}{why}"


def _kill(processes: Iterable[BaseProcess]) -> None:
    for process in processes:
        process.kill()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C goes to all processes of a terminal: a worker that starts within ignores it from the beginning."""
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
