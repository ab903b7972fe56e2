"""`glmforge health` on this machine, with a GPU library, programs and processes that are made up."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health import look as look_module
from glmforge_ops.health.checks.check import Status
from glmforge_ops.health.look import look


def test_this_machine_answers_in_all_parts() -> None:
    found = look(environment={"NCCL_TIMEOUT": "1"})
    assert found.facts["system"]["cores"] == len(os.sched_getaffinity(0))
    assert {"glmforge", "torch"} <= found.versions.keys()
    assert found.facts["disks"]["mounts"]
    assert "limits.files" in found.outcomes
    assert [finding.name for finding in found.environment] == ["NCCL_TIMEOUT"]


def test_torch_is_not_imported() -> None:
    source = "import sys; import glmforge_ops.cli.health; "
    source += "from glmforge_ops.health.look import look; list(look().lines()); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source]).returncode == 0


def test_a_gpu_that_hangs_costs_the_gpus_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    library = tmp_path / "libnvidia-ml.so.1"
    source = b"#include <unistd.h>\nint nvmlInitWithFlags(unsigned flags) { for (;;) pause(); }\n"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"], input=source, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(look_module, "_LIMIT_S", 8.0)
    found = look(environment={})
    assert "no answer within 8 s" in found.outcomes["gpus"].value
    assert found.exit_status(strict=False) == 1
    assert found.facts.keys() == {"system", "disks"}
    assert found.outcomes["limits.files"].status is not Status.SKIPPED


@pytest.fixture
def training(tmp_path: Path) -> Iterator[int]:
    """A process that looks like a launcher, and whose parent has ended."""
    pid_file = tmp_path / "pid"
    source = f"(exec -a torchrun sleep 600 & echo $! > {pid_file})"
    subprocess.run(["bash", "-c", source], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid = int(pid_file.read_text())
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_processes_of_training_are_listed(training: int) -> None:
    found = [each for each in look(environment={}).facts["system"]["training"] if each["pid"] == training]
    assert len(found) == 1
    assert found[0]["command"] == "torchrun 600"
    assert found[0]["parent"] != os.getpid()


def test_paths_of_the_cluster_are_looked_at(tmp_path: Path) -> None:
    cluster = ClusterConfig(nodes=["localhost"], local_path=tmp_path, shared_path=tmp_path / "none", gpus_per_node=0)
    facts = look(cluster, environment={}).facts["disks"]
    assert facts["missing"] == [str(tmp_path / "none")]
    assert str(tmp_path) in [path for mount in facts["mounts"] for path in mount["paths"]]


def test_the_command_prints_a_page_and_ends_as_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TIMEOUT", "1")
    shown = CliRunner().invoke(app, ["health"])
    assert shown.exit_code == 1
    assert "NCCL_TIMEOUT=1: no program reads it" in shown.output
    assert "versions" in shown.output
    data = json.loads(CliRunner().invoke(app, ["health", "--json"]).output)
    assert data["facts"]["system"]["cores"] >= 1
