"""The stacks of live ranks, which know nothing of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.doctor import stacks
from glmforge.doctor.stacks import StacksError, dump_stacks

RANK = """
import sys, time
from pathlib import Path
from glmforge.runtime.traces import leave_trace

def waits_for_ever():
    print("there", flush=True)
    time.sleep(600)

with leave_trace("glmforge train", Path(sys.argv[1])):
    waits_for_ever()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run's directory, and two live processes that are its ranks."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "RANK": str(rank), "SLURM_PROCID": "7"},
        )
        for rank in (1, 0)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"there\n"
    yield tmp_path
    for rank in ranks:
        rank.kill()
        rank.wait()


def test_all_ranks_of_this_machine(run: Path, tmp_path: Path) -> None:
    try:
        found = dump_stacks(run)
    except StacksError as error:
        pytest.skip(f"py-spy cannot look here: {error}")
    assert [each.rank for each in found] == [0, 1]
    assert all("waits_for_ever" in each.text for each in found)


def test_without_py_spy(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks.shutil, "which", lambda *_, **__: None)
    with pytest.raises(StacksError, match="py-spy is not installed: pip install py-spy"):
        dump_stacks(run)


def test_without_permission(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "py-spy"
    program.write_text(
        "#!/bin/sh\necho 'Error: Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StacksError, match=r"kernel\.yama\.ptrace_scope=0") as caught:
        dump_stacks(run)
    assert "\n" not in str(caught.value)


def test_a_run_that_is_not_running(tmp_path: Path) -> None:
    with pytest.raises(StacksError, match="it is not running"):
        dump_stacks(tmp_path)
