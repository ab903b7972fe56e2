"""What a rank finds in its environment."""

import json
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.runtime.launch import LaunchEnvironment
from glmforge_ops.jobs.ranks.assignment import FILE, Assignment
from glmforge_ops.jobs.ranks.seats import Seat
from glmforge_ops.jobs.ranks.variables import attempt_number, rank_variables
from helpers.ranks import assignment


def variables(inherited: dict[str, str] | None = None, *, by: str = "srun", **changes: object) -> dict[str, str]:
    given = assignment(["true"], nodes=["a", "b"], ranks_per_node=2, address="10.0.0.1", port=20_007, **changes)
    return rank_variables(given, Seat(3, 1, 1), inherited or {}, attempt="12", by=by, interface="eth0")


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


def test_torchruns_store_is_left_to_torchrun() -> None:
    of_torchrun = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "41", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    found = variables(of_torchrun | {"TORCHELASTIC_RESTART_COUNT": "0"}, by="torchrun")
    assert {name: found[name] for name in of_torchrun} == of_torchrun


def test_gpus_are_shown_where_no_scheduler_does() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in variables()
    assert variables(gpus_per_node=2)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert variables({"CUDA_VISIBLE_DEVICES": "6,7"}, gpus_per_node=2)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert "CUDA_VISIBLE_DEVICES" not in variables({"SLURM_JOB_ID": "1"}, gpus_per_node=2)


def test_threads() -> None:
    assert variables(cpus_per_task=6)["OMP_NUM_THREADS"] == "6"
    assert variables({"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"
    assert variables({"SLURM_CPUS_PER_TASK": "5"}, cpus_per_task=None)["OMP_NUM_THREADS"] == "5"
    assert int(variables(cpus_per_task=None)["OMP_NUM_THREADS"]) >= 1


def test_the_attempts_number() -> None:
    assert attempt_number(Path("jobs/air/attempts/0012")) == "12"
    assert attempt_number(Path("jobs/air/attempts/other")) == "0"


def test_an_assignment_comes_back_and_is_its_owners_alone(tmp_path: Path) -> None:
    given = assignment(["echo", "a b"], environment={"TOKEN": "secret"}, log_bytes=5)
    given.write(tmp_path)
    given.write(tmp_path)
    assert Assignment.read(tmp_path) == given
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "changes",
    [{"ranks_per_node": True}, {"environment": {"A": "b\0c"}}, {"nodes": []}, {"command": []}, {"ranks_per_node": 0}],
)
def test_values_that_no_starter_writes_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    assignment(["true"]).write(tmp_path)
    given = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(given | changes))
    with pytest.raises(LaunchError, match="not what a starter"):
        Assignment.read(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"command": ["a"], "cwd": 3}', "{" * 10_000, '{"command": "rm", "cwd": "/"}']
)
def test_what_is_no_assignment_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(LaunchError, match="not what a starter"):
        Assignment.read(tmp_path)
