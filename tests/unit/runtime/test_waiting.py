"""Each way to wait ends for an interrupt that does not wake the main thread; and otherwise gives what it waits for."""

import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from glmforge.runtime.waiting import as_done, join, result_of, take
from helpers.unwoken import run_program

_PROGRAM = """
import os, signal, threading
from concurrent.futures import Future
from queue import SimpleQueue
from glmforge.runtime.waiting import as_done, join, result_of, take

ending = threading.Event()

def interrupt():
    signal_without_waking(signal.SIGINT)
    ending.wait()

thread = threading.Thread(target=interrupt, daemon=True)
thread.start()
try:
    WAIT
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("wait", ["take(SimpleQueue())", "list(as_done([Future()]))", "join(thread)"])
def test_an_interrupt_that_does_not_wake_the_main_thread_is_heeded(tmp_path: Path, wait: str) -> None:
    done = run_program(_PROGRAM.replace("WAIT", wait), tmp_path)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_what_is_waited_for_comes() -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    queue.put(3)
    assert take(queue) == 3
    late = threading.Timer(0.5, queue.put, [4])  # later than a step
    late.start()
    assert take(queue) == 4
    join(late)
    assert not late.is_alive()


def test_futures_come_when_they_are_done() -> None:
    first, failed, cancelled = Future[int](), Future[int](), Future[int]()
    failed.set_exception(ValueError("no"))
    cancelled.cancel()
    coming = as_done([first, failed, cancelled])
    assert [next(coming), next(coming)] == [failed, cancelled]
    first.set_result(1)
    assert list(coming) == [first]
    assert result_of(first) == 1
    with pytest.raises(ValueError, match="no"):
        result_of(failed)
    with pytest.raises(CancelledError):
        result_of(cancelled)
    with ThreadPoolExecutor(1) as pool:
        assert result_of(pool.submit(lambda: time.sleep(0.5) or 2)) == 2
