"""What a node is asked: over ssh, by srun in a job, or here; and what comes of one that does not answer."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.runtime.ssh import Ssh
from glmforge_ops.jobs.starters import running
from glmforge_ops.jobs.starters.base import SilentNodeError, Starter
from glmforge_ops.jobs.starters.local import LocalStarter
from glmforge_ops.jobs.starters.mpirun import MpirunStarter
from glmforge_ops.jobs.starters.srun import SrunStarter
from glmforge_ops.jobs.starters.ssh import SshStarter
from glmforge_ops.jobs.starters.torchrun import TorchrunStarter
from glmforge_ops.jobs.supervisor.verdict.errors import may_start_later

WORDS = ["echo", "10.0.0.1", "20007"]


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`ssh` and `srun` that print how they were called."""
    for name in ("ssh", "srun"):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" "[$SLURM_NTASKS_PER_NODE]"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("starter", [SshStarter(), TorchrunStarter(), MpirunStarter()], ids=lambda each: each.name)
def test_through_ssh(starter: Starter, programs: Path) -> None:
    said = starter.ask("node7", WORDS).split()
    assert said[0] == "ssh"
    assert "node7" in said
    for name in ("localhost", socket.gethostname()):
        assert starter.ask(name, WORDS) == "10.0.0.1 20007\n"


@pytest.mark.parametrize("starter", [SrunStarter(), TorchrunStarter(), MpirunStarter()], ids=lambda each: each.name)
def test_by_srun_in_a_job(starter: Starter, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")  # the job's, which the step is not to take
    said = starter.ask("node2", WORDS).split()
    assert said[0] == "srun"
    assert {"--nodelist=node2", "--ntasks=1", "--overlap", "[]"} <= set(said)
    assert starter.ask("node1", WORDS) == "10.0.0.1 20007\n"


def test_here() -> None:
    assert LocalStarter().ask("whatever", WORDS) == "10.0.0.1 20007\n"


def test_a_node_that_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = LocalStarter().ask
    with pytest.raises(LaunchError, match="there is no 'no-such-program'"):
        ask("a", ["no-such-program"])
    with pytest.raises(LaunchError, match=r"^a: the disk is full$"):
        ask("a", ["sh", "-c", "echo the disk is full >&2; exit 3"])
    srun_says = "echo the disk is full >&2; echo 'srun: error: a: task 0: Exited with exit code 3' >&2; exit 3"
    with pytest.raises(LaunchError, match=r"^a: the disk is full$"):
        ask("a", ["sh", "-c", srun_says])
    with pytest.raises(LaunchError, match=r"^a: 'false' ended with status 1$"):
        ask("a", ["false"])
    with pytest.raises(LaunchError, match=rf"^'{tmp_path}' cannot be started: "):
        ask("a", [str(tmp_path)])
    monkeypatch.setattr(running, "ASK_LIMIT_S", 0.0)
    with pytest.raises(SilentNodeError, match="a: has not answered") as silent:
        ask("a", [sys.executable, "-c", "import signal; signal.pause()"])
    assert silent.value.node == "a"


def test_a_node_that_srun_does_not_reach(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    said = "srun: error: Task launch for StepId=17.0 failed on node node2: Communication connection failure"
    (programs / "srun").write_text(f"#!/bin/sh\necho '{said}' >&2; echo 'srun: Job step aborted' >&2; exit 1\n")
    with pytest.raises(SilentNodeError, match=r"node2: srun: error: Task launch .* connection failure") as silent:
        SrunStarter().ask("node2", WORDS)
    assert silent.value.node == "node2"


@pytest.mark.parametrize(
    ("said", "is_silent"),
    [
        (b"srun: Job 17 step creation temporarily disabled, retrying (Requested nodes are busy)\n", False),
        (b"srun: error: Slurm controller not responding, sleeping and retrying.\n", False),
        (b"Python waits for a file\n", True),
        (None, True),
    ],
)
def test_a_node_is_not_silent_while_srun_waits_for_slurm(
    said: bytes | None, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(command: Sequence[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 30, stderr=said)

    monkeypatch.setattr("glmforge_ops.jobs.starters.running.subprocess.run", hangs)
    with pytest.raises(LaunchError, match="node2: has not answered within 30 s") as failed:
        SrunStarter().ask("node2", WORDS)
    assert isinstance(failed.value, SilentNodeError) is is_silent
    assert may_start_later(str(failed.value))


def test_what_is_asked_reads_nothing_of_the_supervisors(tmp_path: Path) -> None:
    """Its input may be a user's terminal."""
    (tmp_path / "input").write_text("of the user\n")
    with (tmp_path / "input").open() as file:
        own = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            assert LocalStarter().ask("a", ["cat"]) == ""
        finally:
            os.dup2(own, 0)
            os.close(own)


@pytest.mark.parametrize("status", [1, 255])
def test_a_status_is_sshs_only_where_ssh_was_called(status: int) -> None:
    with pytest.raises(LaunchError, match=r"^a: ValueError: Connection refused by the table$") as failed:
        LocalStarter().ask("a", ["sh", "-c", f"echo 'ValueError: Connection refused by the table' >&2; exit {status}"])
    assert not isinstance(failed.value, SilentNodeError)


def test_ssh_that_does_not_get_through(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n")
    ssh.chmod(0o700)
    with pytest.raises(LaunchError, match=r"node7: its host key is not known; .* glmforge cluster setup"):
        SshStarter(Ssh((str(ssh),))).ask("node7", WORDS)
