"""Training in a process of its own, which can be killed like any process.

It leads a process group: Ctrl-C reaches this process alone, which passes it on, so that the training hears of each
once. It then saves and ends, and this process waits for that.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from glmforge.config import RunConfig
from glmforge.errors import GlmforgeError
from glmforge.observe.run import RunDirectory

_POLL_SECONDS = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedEarlyError(GlmforgeError):
    """A signal ended the demo while it trained."""

    def __init__(self, number: signal.Signals, config_file: Path) -> None:
        what = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        super().__init__(
            f"{what}; 'glmforge train {config_file}' goes on with the training, the same demo again begins anew"
        )
        self.exit_code = 128 + number


def train_to_the_end(config_file: Path) -> None:
    """Run `glmforge train` and wait for it. Raises `GlmforgeError` if it fails or is interrupted."""
    with _started(config_file) as process:
        code = process.wait()
    _check_exit(code)


def train_and_kill(config: RunConfig, config_file: Path, at_step: int) -> int:
    """Run `glmforge train`, kill it with SIGKILL once step `at_step` is recorded; returns the last recorded step."""
    metrics = RunDirectory(config.output_dir).metrics
    with _started(config_file) as process:
        while _num_lines(metrics) < at_step and process.poll() is None:
            time.sleep(_POLL_SECONDS)
        ended_before = process.poll()
        process.send_signal(signal.SIGKILL)
    if ended_before is not None:
        _check_exit(ended_before)
        raise GlmforgeError(f"{config_file}: the training ended before step {at_step}; give it more --minutes")
    return _num_lines(metrics)


@contextmanager
def _started(config_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The training, to which signals to end are passed on within the block. At its end it has ended.

    Raises `EndedEarlyError` at the end of the block if there were any.
    """
    command = [sys.executable, "-m", "glmforge", "train", os.fspath(config_file)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    received: list[signal.Signals] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        process.send_signal(number)

    heeded = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield process
        process.wait()
    finally:
        process.kill()  # has ended, unless the block has failed
        process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise EndedEarlyError(received[0], config_file)


def _check_exit(code: int) -> None:
    if code != 0:
        raise GlmforgeError(f"glmforge train ended with exit status {code}; its message stands above")


def _num_lines(path: Path) -> int:
    """Whole lines of a file that a process is writing; one per step, as the demo logs every step."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
