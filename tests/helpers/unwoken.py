"""A signal that does not wake the main thread out of a lock, as one that comes just before it falls asleep.

Which thread the system gives a signal to and when is chance. Here it always goes to a thread that is not the main one,
while the main one waits: the flag is set and nobody wakes up.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import FrameType

LIMIT_S = 240
"""Generous: a signal that is missed is missed for ever."""

_LOOKS = 50


def signal_without_waking(number: int) -> None:
    """Send this process a signal, from a thread that is not the main one, when the main one has come to wait."""
    main, looks, before = threading.main_thread().ident, 0, None
    assert main is not None
    while looks < _LOOKS:
        here = _place(sys._current_frames()[main])
        looks, before = looks + 1 if here == before else 0, here
        time.sleep(0.002)  # the main thread can run; were it to run on, the test would be weaker, not wrong
    signal.pthread_kill(threading.get_ident(), number)


def run_program(program: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python program in a process of its own, with default signals; one that hangs is a failure."""
    file = directory / "program.py"
    file.write_text("from helpers.unwoken import signal_without_waking\n" + textwrap.dedent(program))
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path} | variables
    # A process inherits that SIGINT is ignored, as it is where the tests run in the background of a shell.
    command = ["env", "--default-signal=INT", sys.executable, str(file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def _place(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti
