"""Signals to the supervisor: the handler interrupts the loop at any place."""

import os
import signal
import time
from pathlib import Path

from glmforge_ops.jobs.supervisor.bell import Bell
from helpers.unwoken import run_program

_AT_EVERY_LINE = """
import signal, sys
from glmforge_ops.jobs.supervisor.bell import Bell

def trace(frame, event, argument):
    if event == "line":
        signal.raise_signal(signal.SIGUSR1)
    return trace

with Bell() as bell:
    sys.settrace(trace)
    bell.wait(0.01)
    taken = bell.take()
    bell.wait(0.01)
    taken += bell.take()
    sys.settrace(None)
    print(*{number.name for number in taken})
"""


def test_signals_are_kept_until_they_are_taken() -> None:
    with Bell() as bell:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        started = time.monotonic()
        bell.wait(100)
        bell.wait(100)  # they have not been taken
        assert time.monotonic() - started < 100
        assert sorted(bell.take()) == [signal.SIGUSR1, signal.SIGTERM]
        assert bell.take() == []
        bell.wait(0)


def test_a_signal_may_come_at_every_line_of_the_loop(tmp_path: Path) -> None:
    """Also where the loop holds a lock, if it needs one."""
    done = run_program(_AT_EVERY_LINE, tmp_path)
    assert (done.stdout, done.stderr) == ("SIGUSR1\n", "")
