"""Training in a process of its own, which can be killed like any process, watched by the clock.

It leads a process group: Ctrl-C reaches this process alone, which passes it on, so that the training hears of each
once. It then saves and ends, and this process waits for that.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from glmforge.checkpoint import latest_checkpoint
from glmforge.config import RunConfig
from glmforge.errors import GlmforgeError
from glmforge.observe.control import Command, ControlError, send_command
from glmforge.observe.run import RunDirectory
from glmforge.recipes.demo import pace

_POLL_SECONDS = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedEarlyError(GlmforgeError):
    """A signal ended the demo while it trained."""

    def __init__(self, number: signal.Signals, config_file: Path) -> None:
        what = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        super().__init__(
            f"{what}; 'glmforge train {config_file}' resumes the training; running the demo again starts over"
        )
        self.exit_code = 128 + number


@dataclass
class Watched:
    """A `glmforge train` process, and when each of its steps was seen to end."""

    config: RunConfig
    config_file: Path
    num_threads: int
    step: int = 0
    clock: list[float] = field(default_factory=list)
    start_seconds: float = 0.0
    """From its start to the end of its first step."""

    def run(self, on_poll: Callable[["Watched", "subprocess.Popen[bytes]"], bool]) -> int:
        """Start it and call `on_poll` again and again, until it ends or `on_poll` returns True, and then wait.

        Returns the exit status.
        """
        metrics = RunDirectory(self.config.output_dir).metrics
        self.step, self.clock = _num_lines(metrics), []
        asked = False
        started = time.monotonic()
        with _started(self.config_file, self.num_threads) as process:
            while process.poll() is None:
                step = _num_lines(metrics)
                if step != self.step:
                    self.step = step
                    self.start_seconds = self.start_seconds or time.monotonic() - started
                    self.clock.append(time.monotonic())
                asked = asked or on_poll(self, process)
                time.sleep(_POLL_SECONDS)
        self.step = _num_lines(metrics)
        return process.returncode

    @property
    def step_seconds(self) -> float | None:
        """Seconds from step to step by the clock, evaluations and checkpoints included; None if too few were seen."""
        measured = pace.seconds_per_step(self.clock)
        return measured if measured is not None or len(self.clock) < 3 else pace.median_interval(self.clock)


def train_and_kill(watched: Watched, at_step: int, within_seconds: float) -> None:
    """Run `glmforge train` and kill it with SIGKILL at a step, or when the time is up and there is a checkpoint."""
    checkpoints = RunDirectory(watched.config.output_dir).checkpoints
    deadline = time.monotonic() + within_seconds

    def kill_in_time(run: Watched, process: "subprocess.Popen[bytes]") -> bool:
        due = run.step >= at_step or (run.step > 1 and time.monotonic() > deadline)
        if not due or latest_checkpoint(checkpoints) is None:
            return False
        process.send_signal(signal.SIGKILL)
        return True

    code = watched.run(kill_in_time)
    if sys.stderr.isatty():  # the killed process has left the cursor behind its progress bar
        print(file=sys.stderr)
    if code != -signal.SIGKILL:
        _check_exit(code)
        raise GlmforgeError(
            f"{watched.config_file}: the training ended before step {at_step} could be killed; raise --minutes"
        )


def train_to_the_end(watched: Watched, deadline: float, *, may_stop: bool) -> bool:
    """Run `glmforge train` and wait for it; returns whether it came to its end.

    With `may_stop` a run that would end much later than `deadline` (of `time.monotonic`) is asked to save and stop.
    Raises `GlmforgeError` if it fails.
    """

    def stop_if_late(run: Watched, process: "subprocess.Popen[bytes]") -> bool:
        measured = pace.seconds_per_step(run.clock)
        left = deadline - time.monotonic()
        if not may_stop or measured is None or not pace.is_late(run.step, run.config.num_steps, measured, left):
            return False
        try:
            send_command(run.config.output_dir, Command("stop"))
        except ControlError:  # it has ended in this moment
            return False
        return True

    _check_exit(watched.run(stop_if_late))
    return watched.step >= watched.config.num_steps


@contextmanager
def _started(config_file: Path, num_threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """The training, to which signals to end are passed on within the block. At its end it has ended.

    Raises `EndedEarlyError` at the end of the block if there were any.
    """
    command = [sys.executable, "-m", "glmforge", "train", os.fspath(config_file)]
    environment = os.environ | {"OMP_NUM_THREADS": str(num_threads)}
    process: subprocess.Popen[bytes] | None = None
    received: list[signal.Signals] = []
    num_sent = 0

    def send() -> None:
        nonlocal num_sent
        while process is not None and num_sent < len(received):
            num_sent += 1
            process.send_signal(received[num_sent - 1])

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        send()

    heeded = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, process_group=0)
        send()
        yield process
        process.wait()
    finally:
        if process is not None:
            process.kill()  # has ended, unless the block has failed
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise EndedEarlyError(received[0], config_file)


def _check_exit(code: int) -> None:
    if code != 0:
        raise GlmforgeError(f"glmforge train exited with status {code}; see its message above")


def _num_lines(path: Path) -> int:
    """Whole lines of a file that a process is writing; one per step, as the demo logs every step."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
