"""What Ctrl-C, or the end of torchrun, does while a process runs, also while its main thread cannot run Python.

A handler of `signal.signal` runs in the main thread between two bytecodes, so never while that waits in C++ for a peer
that does not come. Here the interpreter's wake-up descriptor tells a thread, which acts at once.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Self

INTERRUPTED = 130
"""Status of a process that Ctrl-C ended: 128 and the number of SIGINT, as shells have it."""


class InterruptWatch:
    """Calls `act(n)` in a thread of its own on the n-th interrupt within the block; n counts from 1.

    Watches may be nested: the innermost acts. Nothing is watched where SIGINT is ignored, as in a process that a shell
    started in the background, or outside the main thread.
    """

    def __init__(self, act: Callable[[int], None]) -> None:
        self._act = act
        self._before: Any = None
        self._wakeup_before = -1
        self._ends: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Watch from now on."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        ):
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._ends = reading, writing
        self._wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._before = signal.signal(signal.SIGINT, _do_nothing)
        self._thread = threading.Thread(target=self._watch, args=(reading,), name="interrupts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """What was done on an interrupt before `start` is done again."""
        if self._ends is None or self._thread is None:
            return
        signal.signal(signal.SIGINT, self._before)
        signal.set_wakeup_fd(self._wakeup_before)
        reading, writing = self._ends
        os.close(writing)  # the thread reads the end
        self._thread.join()
        os.close(reading)
        self._ends = None

    def _watch(self, reading: int) -> None:
        count = 0
        while received := os.read(reading, 64):
            for number in received:
                if number == signal.SIGINT:
                    count += 1
                    self._act(count)


def ends_at_once(line: str, *, speaks: bool = True) -> InterruptWatch:
    """On the first interrupt the process says `line`, if it `speaks`, and ends at once."""

    def act(count: int) -> None:
        if speaks:
            say(line)
        os._exit(INTERRUPTED)

    return InterruptWatch(act)


def say(line: str) -> None:
    """Onto stderr past Python's locks, which the main thread may hold; a terminal has echoed ^C on the line before."""
    start = "\n" if os.isatty(2) else ""
    os.write(2, f"{start}glmforge: {line}\n".encode())


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """The thread acts."""


def end_with_torchrun(environment: Mapping[str, str] = os.environ) -> None:
    """From now on this process ends within a moment of torchrun's end, with a line of the node's first rank.

    torchrun ends its ranks when it ends, unless it is killed. They would then wait for each other, or train beside the
    job that is started in place of theirs. Ranks that `glmforge launch` starts are ended by the program beside them
    (`glmforge_ops.jobs.ranks`).
    """
    if "TORCHELASTIC_RUN_ID" not in environment or "GLMFORGE_STEP_FILE" in environment:
        return
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):  # no Linux, an old one, or a parent outside this container
        return
    speaks = environment.get("LOCAL_RANK", "0") == "0"
    threading.Thread(target=_end_with, args=(parent, descriptor, speaks), name="torchrun", daemon=True).start()


def _end_with(parent: int, descriptor: int, speaks: bool) -> None:
    if os.getppid() == parent:  # else it has ended before it could be watched
        select.select([descriptor], [], [])
    if speaks:
        say(f"torchrun (process {parent}) was killed, and its ranks end, too; run it again to resume")
    os._exit(1)
