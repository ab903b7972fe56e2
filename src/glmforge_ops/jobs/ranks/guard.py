"""A process that ends the commands of another when that one is killed.

Who is killed cannot clean up, and a command that goes on alone would train and save beside the one that replaces it.
The guard is forked first, ignores every signal, and waits for the end of a pipe that only its parent writes to.
"""

import contextlib
import os
import signal
import struct
import time

ORPHAN_GRACE_S = 5.0
"""That a command has between SIGTERM and SIGKILL when nobody waits for it any more."""

_MESSAGE = struct.Struct("=i")


class Guard:
    """Process groups to be ended if this process goes; `add` may be called in a child before it becomes another."""

    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _be_guard(reading)
        os.close(reading)

    def add(self, group: int) -> None:
        os.write(self._pipe, _MESSAGE.pack(group))

    def remove(self, group: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._pipe, _MESSAGE.pack(-group))

    def close(self) -> None:
        os.close(self._pipe)
        os.waitpid(self.pid, 0)


def end_groups(groups: set[int], grace_s: float) -> None:
    """SIGTERM, and SIGKILL for those that are still there after `grace_s`."""
    signal_groups(groups, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(_is_there(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    signal_groups(groups, signal.SIGKILL)


def signal_groups(groups: set[int], number: int) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _be_guard(pipe: int) -> None:
    """Never returns."""
    try:
        os.setsid()
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        os.dup2(pipe, 0)
        os.closerange(1, 65_536)
        groups: set[int] = set()
        while message := os.read(0, _MESSAGE.size):
            group = _MESSAGE.unpack(message)[0]
            groups = groups | {group} if group > 0 else groups - {-group}
        end_groups(groups, ORPHAN_GRACE_S)
    finally:
        os._exit(0)
