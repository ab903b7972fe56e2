"""Who ends commands when nobody is left to: those that still run, and gently at first."""

import signal
import subprocess
from collections.abc import Iterator

import pytest

from glmforge_ops.jobs.ranks.guard import Guard


@pytest.fixture
def commands() -> Iterator[list["subprocess.Popen[bytes]"]]:
    found = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2)]
    yield found
    for command in found:
        command.kill()
        command.wait()


def test_only_what_still_runs_is_ended(commands: list["subprocess.Popen[bytes]"]) -> None:
    guard = Guard()
    for command in commands:
        guard.add(command.pid)
    guard.remove(commands[0].pid)
    guard.close()  # comes back when the guard has ended
    assert commands[1].wait(60) == -signal.SIGTERM
    assert commands[0].poll() is None
