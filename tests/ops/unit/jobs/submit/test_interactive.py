"""Shells with the nodes of a job."""

import shlex
import subprocess
from pathlib import Path

import pytest

from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge_ops.jobs.submit.interactive import allocation

SIZE = {"nodes": 2, "gpus_per_node": 4, "time": "1:00:00", "env": {"A": "b"}}


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHELL", "/bin/zsh")
    monkeypatch.chdir(tmp_path)


def test_of_slurm() -> None:
    words = allocation(LaunchConfig(launcher="slurm", cpus_per_task=3, **SIZE), "try")  # type: ignore[arg-type]
    assert words[0] == "salloc"
    assert {"--job-name=try", "--nodes=2", "--gpus-per-node=4", "--time=1:00:00"} <= set(words)
    assert words[words.index("env") :] == ["env", "OMP_NUM_THREADS=3", "SRUN_CPUS_PER_TASK=3", "A=b", "/bin/zsh"]
    assert not [word for word in words if word.startswith(("--output", "--requeue", "--signal", "--open-mode"))]


def test_of_pbs() -> None:
    words = allocation(LaunchConfig(launcher="pbs", **SIZE), "try")  # type: ignore[arg-type]
    assert words[:4] == ["qsub", "-I", "-N", "try"]
    assert "select=2:ncpus=4:mpiprocs=4:ngpus=4" in words
    assert words[-2:] == ["-v", "A=b"]


@pytest.mark.parametrize("value", ["a,b", "it's", "$(id)", "a b"])
def test_what_qsub_cannot_carry_is_refused(value: str) -> None:
    with pytest.raises(LaunchError, match=r"env\.A: qsub -v cannot carry this value"):
        allocation(LaunchConfig(launcher="pbs", env={"A": value}), "try")


@pytest.mark.parametrize("value", ["b", "it's", '$(id) `x` "y" \\', "a b", ""])
def test_the_shell_of_the_first_host_has_the_variables(value: str, tmp_path: Path) -> None:
    launch = LaunchConfig(launcher="ssh", nodes=2, hosts=["node[1-3]"], env={"A": value})
    *ssh, host, line = allocation(launch, "try")
    assert (ssh[0], ssh[-1], host) == ("ssh", "--", "node1")
    printed = line.replace("bash -l", "printenv A")
    done = subprocess.run(["bash", "-c", printed], capture_output=True, text=True, check=True)
    assert done.stdout == value + "\n"
    assert shlex.split(line)[2].startswith(f"cd -- {tmp_path} ")


def test_of_this_machine() -> None:
    assert allocation(LaunchConfig(launcher="local", env={"A": "b c"}), "try") == ["env", "A=b c", "/bin/zsh"]


def test_a_shell_has_no_tasks() -> None:
    with pytest.raises(LaunchError, match="a shell has no tasks"):
        allocation(LaunchConfig(launcher="slurm", array="0-3"), "try")
