"""Which starter and which nodes a job's options mean."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.config.launch import LaunchConfig, SupervisorConfig
from glmforge.errors import LaunchError
from glmforge_ops.health.checks.check import failed, passed, skipped
from glmforge_ops.health.checks.examine import REACH
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.jobs.supervisor import assemble
from glmforge_ops.jobs.supervisor.allocation import SlurmAllocation, allocation_of
from glmforge_ops.jobs.supervisor.assemble import NodeChecker, starter_of, supervisor_of
from helpers.made_jobs import made_job


@pytest.mark.parametrize(
    ("launcher", "starter"), [("local", "local"), ("ssh", "ssh"), ("slurm", "srun"), ("pbs", "ssh")]
)
def test_the_starter_of_each_launcher(launcher: str, starter: str) -> None:
    launch = LaunchConfig(launcher=launcher)  # type: ignore[arg-type]
    assert launch.supervise
    assert starter_of(launch).name == starter


def test_what_mpirun_starts_is_not_supervised() -> None:
    launch = LaunchConfig.model_validate({"launcher": "mpi", "supervise": True})  # as earlier versions have written it
    assert not launch.supervise
    with pytest.raises(LaunchError, match="starter mpirun: its jobs have no supervisor"):
        starter_of(launch)


def test_settings_that_were_given_up_are_read_and_forgotten() -> None:
    """They stand in every job.yaml of an earlier version."""
    old = {"grow_after_s": 900.0, "refused_starts": 5, "companion_partition": None, "look_every_s": 600.0}
    assert SupervisorConfig(**old, max_restarts=3) == SupervisorConfig(max_restarts=3)


def nodes(**options: object) -> tuple[str, ...]:
    return allocation_of(LaunchConfig(**options), Fanout()).nodes()  # type: ignore[arg-type]


def test_hosts_in_their_order_without_excluded_ones() -> None:
    assert nodes(launcher="ssh", hosts=["b", "n[1-3]"], exclude=["n2"]) == ("b", "n1", "n3")


def test_hosts_of_a_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1 slots=4\nn2\n")
    assert nodes(launcher="mpi", hostfile=tmp_path / "hosts") == ("n1", "n2")


def test_every_host_is_excluded() -> None:
    with pytest.raises(LaunchError, match="no hosts"):
        nodes(launcher="ssh", hosts=["a"], exclude=["a"])


@pytest.mark.parametrize(("launcher", "variable"), [("slurm", "SLURM_JOB_ID"), ("pbs", "PBS_JOBID")])
def test_outside_a_job(launcher: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LaunchError, match=f"{variable} is not set"):
        nodes(launcher=launcher)


def test_the_nodes_of_a_pbs_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node stands there once for each of its slots."""
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PBS_JOBID", "12.server")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    allocation = allocation_of(LaunchConfig(launcher="pbs"), Fanout())
    assert allocation.nodes() == ("n1", "n2")
    assert allocation.submission == "12.server"
    assert allocation.is_given, "who gives way is not started again here"


def test_pbs_in_front_of_slurm_is_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(SlurmAllocation, "here", lambda: "of Slurm")
    assert allocation_of(LaunchConfig(launcher="pbs"), Fanout()) == "of Slurm"  # type: ignore[comparison-overlap]


def test_nodes_are_checked_where_they_have_devices(tmp_path: Path) -> None:
    """A node that does not answer keeps nobody waiting for long."""
    without = supervisor_of(made_job(tmp_path, "without", launch={"launcher": "local", "nodes": 1}))
    assert without.checker is None
    launch = {"launcher": "local", "nodes": 1, "gpus_per_node": 2, "ranks_per_node": 2}
    checker = supervisor_of(made_job(tmp_path, "with", launch=launch)).checker
    assert isinstance(checker, NodeChecker)
    assert checker.cluster.gpus_per_node == 2
    assert checker.fanout.ssh.connect_timeout_s <= 8


def test_what_a_check_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fault of a node; one that cannot be reached is no broken one."""
    outcomes = {
        REACH: {"a": failed("no route", "", ""), "b": passed("", "")},
        "gpu.ecc": {"b": failed("9 errors", "", ""), "c": passed("0", "")},
        "gpu.xid": {"b": failed("Xid 79", "", ""), "c": skipped("no driver")},
    }
    monkeypatch.setattr(assemble, "examine", lambda *_: SimpleNamespace(outcomes=outcomes))
    assert NodeChecker(ClusterConfig(), Fanout())(["a", "b", "c"]) == {"b": "gpu.ecc: 9 errors"}
