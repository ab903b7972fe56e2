"""Ranks whose torchrun is killed end, wherever they wait, and one of them says why."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from helpers.ranks import until
from helpers.unwoken import LIMIT_S

_RANK = """
import os, signal, sys, threading
from glmforge.runtime.interrupts import end_with_torchrun
end_with_torchrun()
os.write(1, f"{os.getpid()}\\n".encode())
lock = threading.Lock()
lock.acquire()
lock.acquire()  # as in C++, no bytecode is run
"""
_LAUNCHER = """
import os, subprocess, sys
for rank in "01":
    subprocess.Popen([sys.executable, sys.argv[1]], env=os.environ | {"LOCAL_RANK": rank})
sys.stdin.read()
"""


@contextmanager
def started(directory: Path, **environment: str) -> "Iterator[tuple[subprocess.Popen[str], list[int]]]":
    """The launcher, and its two ranks, which wait; what is left of them ends with the block."""
    (directory / "rank.py").write_text(_RANK)
    (directory / "launcher.py").write_text(_LAUNCHER)
    launcher = subprocess.Popen(
        [sys.executable, str(directory / "launcher.py"), str(directory / "rank.py")],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert launcher.stdout is not None
    ranks = [int(launcher.stdout.readline()) for _ in range(2)]
    try:
        yield launcher, ranks
    finally:
        for pid in (launcher.pid, *ranks):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()


def test_all_ranks_end_and_one_says_why(tmp_path: Path) -> None:
    with started(tmp_path, TORCHELASTIC_RUN_ID="a run") as (launcher, _):
        launcher.kill()
        said, _ = launcher.communicate(timeout=LIMIT_S)  # until both ranks have closed it
    why = f"torchrun (process {launcher.pid}) was killed, and its ranks end, too; run it again to resume"
    assert said == f"glmforge: {why}\n"


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_RUN_ID": "a run", "GLMFORGE_STEP_FILE": "a file"}])
def test_ranks_of_others_are_left_to_them(tmp_path: Path, environment: dict[str, str]) -> None:
    with started(tmp_path, **environment) as (launcher, ranks):
        launcher.kill()
        until(lambda: all(_parent(rank) != launcher.pid for rank in ranks), "ranks without a parent")
        for rank in ranks:
            assert len(list(Path(f"/proc/{rank}/task").iterdir())) == 1  # nothing watches


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
