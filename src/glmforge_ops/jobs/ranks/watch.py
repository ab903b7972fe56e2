"""The loop of a node's ranks: reads what they print, passes signals on, and sees who has ended or gone."""

import os
import selectors
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import IO, Protocol

from glmforge_ops.jobs.ranks.guard import ORPHAN_GRACE_S, Guard

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Passed on to every rank. After SIGTERM, SIGINT and SIGHUP the ranks have their grace, and are killed."""

STANDS_FOR_TERM, STANDS_FOR_KILL = signal.SIGALRM, signal.SIGABRT
"""Sent to this process by starters that pass on neither (mpirun), or whose own ranks it would not reach (torchrun)."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

SILENT_S = 60.0
"""Without a sign of life on the control channel: a cut link looks like this, and nothing else tells of one."""

_LOOK_S = 1.0
_LAST_OUTPUT_S = 2.0


class Watched(Protocol):
    """A process that was started: a rank, or a torchrun that starts ranks."""

    @property
    def is_running(self) -> bool: ...
    @property
    def streams(self) -> Mapping[IO[bytes], object]: ...
    def read(self, stream: IO[bytes]) -> bool: ...
    def signal(self, number: int) -> None: ...
    def look(self, guard: Guard) -> bool: ...


class Watch:
    """Watches `ranks` from their start to their end.

    Args:
        grace_s: between a signal that asks for the end, and SIGKILL.
        control: standard input of a node's process: "beat", "signal NUMBER" and "kill", a line each; its end is the
            end of the connection. None: the parent process is watched alone.
        beats: whether somebody says "beat" all the time, so that `SILENT_S` without it is a link that is cut.
    """

    def __init__(
        self, ranks: Sequence[Watched], guard: Guard, grace_s: float, control: int | None, *, beats: bool = False
    ) -> None:
        self._ranks, self._guard, self._grace_s, self._control = ranks, guard, grace_s, control
        self._beats = beats
        self._parent = os.getppid()
        self._selector = selectors.DefaultSelector()
        self._kill_at: float | None = None
        self._heard = time.monotonic()
        self._commands = b""
        self._orphan = False
        self._wake, self._waker = os.pipe()

    def start(self) -> None:
        """From now on signals are for the ranks."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (*FORWARDED, STANDS_FOR_TERM, STANDS_FOR_KILL, signal.SIGCHLD):
            signal.signal(number, _do_nothing)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        if self._control is not None:
            os.set_blocking(self._control, False)
            self._selector.register(self._control, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Until every rank has ended, and what they have printed is read."""
        for rank in self._ranks:
            for stream in rank.streams:
                self._selector.register(stream, selectors.EVENT_READ, rank)
        while any(rank.is_running for rank in self._ranks):
            self._wait(_LOOK_S)
            for rank in self._ranks:
                rank.look(self._guard)
            self._look_up()
        # A process that left the group, and so was not ended with it, may keep a stream open for ever.
        deadline = time.monotonic() + _LAST_OUTPUT_S
        while any(rank.streams for rank in self._ranks) and time.monotonic() < deadline:
            self._wait(0.1)

    def _wait(self, timeout_s: float) -> None:
        if self._kill_at is not None:
            timeout_s = min(timeout_s, max(0.0, self._kill_at - time.monotonic()))
        for key, _ in self._selector.select(timeout_s):
            if key.data is not None:
                self._read(key.data, key.fileobj)  # type: ignore[arg-type]
            elif key.fileobj == self._wake:
                self._pass_on(os.read(self._wake, 4096))
            else:
                self._obey()

    def _read(self, rank: Watched, stream: IO[bytes]) -> None:
        descriptor = stream.fileno()
        if not rank.read(stream):
            self._selector.unregister(descriptor)

    def _pass_on(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number == STANDS_FOR_KILL:
                self._kill_after(0.0)
            elif number in (*FORWARDED, STANDS_FOR_TERM):
                self._signal(signal.SIGTERM if number == STANDS_FOR_TERM else number)

    def _signal(self, number: int) -> None:
        for rank in self._ranks:
            rank.signal(number)
        if number in _ENDING:
            self._kill_after(self._grace_s)

    def _kill_after(self, grace_s: float) -> None:
        """An earlier time stands."""
        at = time.monotonic() + grace_s
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _obey(self) -> None:
        assert self._control is not None
        data = os.read(self._control, 4096)
        self._heard = time.monotonic()
        if not data:
            self._selector.unregister(self._control)
            self._leave_alone()
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"signal" and number.isdigit():
                self._signal(int(number))
            elif word == b"kill":
                self._kill_after(0.0)

    def _look_up(self) -> None:
        """Whether the one who asked for the ranks is still there, and whether their time is over."""
        now = time.monotonic()
        is_silent = self._beats and now - self._heard > SILENT_S
        if os.getppid() != self._parent or is_silent:
            self._leave_alone()
        if self._kill_at is not None and now >= self._kill_at:
            for rank in self._ranks:
                rank.signal(signal.SIGKILL)
            self._kill_at = now + _LOOK_S

    def _leave_alone(self) -> None:
        """Nobody waits for these ranks any more, and others may soon be started in their place."""
        if not self._orphan:
            self._orphan = True
            self._signal(signal.SIGTERM)
            self._kill_after(min(ORPHAN_GRACE_S, self._grace_s))


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """The number arrives through the wake-up descriptor."""
