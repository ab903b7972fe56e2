"""Work in threads: the order of results, failures, and an interrupt while it is waited for."""

from pathlib import Path

import pytest

from glmforge.runtime.waiting import map_in_threads
from helpers.unwoken import run_program

_PROGRAM = """
import signal, threading
from glmforge.runtime.waiting import map_in_threads

interrupted = threading.Event()

def on_interrupt(number, frame):
    interrupted.set()
    raise KeyboardInterrupt

def work(item):
    signal_without_waking(signal.SIGINT)
    interrupted.wait()

signal.signal(signal.SIGINT, on_interrupt)
try:
    list(map_in_threads(work, [1], 1))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_does_not_wake_the_main_thread_is_heeded(tmp_path: Path) -> None:
    done = run_program(_PROGRAM, tmp_path)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_results_come_in_order_and_the_first_failure_ends_it() -> None:
    started: list[str] = []
    results = map_in_threads(lambda item: 6 // item, [3, 2, 0, 1], 1, at_start=lambda: started.append("thread"))
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert started == ["thread"]
