"""What a rank finds in its environment."""

from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.runtime.launch import LaunchEnvironment
from glmforge_ops.jobs.ranks.assignment import FILE, Assignment, interface_to, rank_variables
from helpers.ranks import assignment


def variables(inherited: dict[str, str] | None = None, **changes: object) -> dict[str, str]:
    given = assignment(["true"], nodes=["a", "b"], ranks_per_node=2, address="10.0.0.1", port=20_007, **changes)
    return rank_variables(given, 1, 1, inherited or {}, attempt="12", interface="eth0")


def test_the_training_command_reads_them() -> None:
    launch = LaunchEnvironment.read(variables())
    assert (launch.rank, launch.world_size, launch.local_rank, launch.local_world_size) == (3, 4, 1, 2)
    assert (launch.num_nodes, launch.attempt, launch.meeting_point()) == (2, "12", ("10.0.0.1", 20_007))


def test_numbers_of_another_job_are_overwritten_and_settings_kept() -> None:
    inherited = {"RANK": "77", "MASTER_ADDR": "elsewhere", "TORCHELASTIC_USE_AGENT_STORE": "True", "HOME": "/home/me"}
    found = variables(inherited, environment={"GLOO_SOCKET_IFNAME": "ib0", "WORLD_SIZE": "9"})
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"]) == ("3", "4", "10.0.0.1")
    assert "TORCHELASTIC_USE_AGENT_STORE" not in found
    assert found["HOME"] == "/home/me"
    assert found["GLOO_SOCKET_IFNAME"] == "ib0"
    assert found["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_programs_that_read_slurms_numbers_get_the_ranks() -> None:
    """Slurm has started one task per node."""
    found = variables({"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"})
    assert [found[f"SLURM_{name}"] for name in ("PROCID", "LOCALID", "NTASKS")] == ["3", "1", "4"]


def test_gpus_are_shown_where_no_scheduler_does() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in variables()
    assert variables(gpus_per_node=2)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert variables({"CUDA_VISIBLE_DEVICES": "6,7"}, gpus_per_node=2)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert "CUDA_VISIBLE_DEVICES" not in variables({"SLURM_JOB_ID": "1"}, gpus_per_node=2)


def test_threads() -> None:
    assert variables(cpus_per_task=6)["OMP_NUM_THREADS"] == "6"
    assert variables({"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"
    assert int(variables(cpus_per_task=None)["OMP_NUM_THREADS"]) >= 1


def test_the_interface_of_a_route() -> None:
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("no.such.host.invalid") is None


def test_an_assignment_comes_back_and_is_its_owners_alone(tmp_path: Path) -> None:
    given = assignment(["echo", "a b"], environment={"TOKEN": "secret"})
    given.write(tmp_path)
    given.write(tmp_path)
    assert Assignment.read(tmp_path) == given
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"of": "another version"}'])
def test_what_another_version_wrote_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(LaunchError, match="written by another version"):
        Assignment.read(tmp_path)
