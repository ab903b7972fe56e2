"""Which nodes a supervisor has, by launcher."""

from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.config.launch import LaunchConfig
from glmforge.errors import LaunchError
from glmforge.launch.supervisor.assemble import hosts_of


def test_nodes_of_pbs_are_those_of_its_file_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nodes"
    file.write_text("b1\nb1\na2\na2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(file))
    assert hosts_of(LaunchConfig(launcher="pbs", nodes=2), ClusterConfig()) == ("b1", "a2")


def test_outside_a_job_of_pbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    with pytest.raises(LaunchError, match="PBS_NODEFILE is not set"):
        hosts_of(LaunchConfig(launcher="pbs"), ClusterConfig())
