"""Ranks whose torchrun is killed end, wherever they wait, and one of them says why."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.ranks import until

_RANK = """
import os, signal, sys, threading
from glmforge.cluster.torchrun import end_with_torchrun
end_with_torchrun()
os.write(1, f"{os.getpid()} {os.getppid()}\\n".encode())
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


def started(directory: Path, **environment: str) -> "tuple[subprocess.Popen[str], list[int]]":
    """The launcher, and its two ranks, which wait."""
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
    return launcher, [int(launcher.stdout.readline().split()[0]) for _ in range(2)]


def test_all_ranks_end_and_one_says_why(tmp_path: Path) -> None:
    launcher, _ = started(tmp_path, TORCHELASTIC_RUN_ID="a run")
    launcher.kill()
    said, _ = launcher.communicate(timeout=240)  # until both ranks have closed it
    why = f"torchrun (process {launcher.pid}) was killed, and its ranks end, too; run it again to resume"
    assert said == f"glmforge: {why}\n"


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_RUN_ID": "a run", "GLMFORGE_STEP_FILE": "a file"}])
def test_ranks_of_others_are_left_to_them(tmp_path: Path, environment: dict[str, str]) -> None:
    launcher, ranks = started(tmp_path, **environment)
    launcher.kill()
    launcher.wait()
    until(lambda: all(_parent(rank) != launcher.pid for rank in ranks), "ranks without a parent")
    for rank in ranks:
        assert len(list(Path(f"/proc/{rank}/task").iterdir())) == 1  # nothing watches
        os.kill(rank, signal.SIGKILL)
    assert launcher.communicate(timeout=240)[0] == ""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
