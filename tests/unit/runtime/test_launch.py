import re

import pytest

from glmforge.errors import ConfigError
from glmforge.runtime.launch import LaunchEnvironment, address_of_node, first_node, tasks_of_nodes

SLURM_TASK = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[003-004,7],gpu9",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "28",
    "SLURM_STEP_TASKS_PER_NODE": "8(x3),4",
    "SLURM_PROCID": "25",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "3",
}


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ({}, 1),
        ({"RANK": "0", "WORLD_SIZE": "4"}, 1),
        ({"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2),
        ({"RANK": "0", "WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}, 2),
    ],
)
def test_nodes(environment: dict[str, str], nodes: int) -> None:
    assert LaunchEnvironment.read(environment).num_nodes == nodes


def test_a_process_without_a_launcher_is_rank_0_of_one() -> None:
    alone = LaunchEnvironment.read({})
    assert alone == LaunchEnvironment()
    assert alone.is_main
    assert alone.is_first_of_node


def test_torchrun() -> None:
    told = {
        "RANK": "9",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "node1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert LaunchEnvironment.read(told) == LaunchEnvironment(9, 16, 1, 8, 2, "node1", 29500, "3", agent_serves=True)
    assert not LaunchEnvironment.read(told).is_first_of_node


def test_the_deepspeed_launcher() -> None:
    told = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_SIZE": "8", "CROSS_SIZE": "2", "CROSS_RANK": "1"}
    told |= {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert LaunchEnvironment.read(told) == LaunchEnvironment(9, 16, 1, 8, 2, "node1", 29500)
    uneven = {"RANK": "9", "WORLD_SIZE": "12", "LOCAL_RANK": "1", "LOCAL_SIZE": "4", "CROSS_SIZE": "2"}
    assert LaunchEnvironment.read(uneven).num_nodes == 2


def test_a_batch_script_that_does_not_tell_of_nodes_has_one() -> None:
    launch = LaunchEnvironment.read({"RANK": "1", "WORLD_SIZE": "2"})
    assert (launch.local_rank, launch.local_world_size, launch.num_nodes) == (1, 2, 1)


def test_tasks_of_srun_are_ranks() -> None:
    launch = LaunchEnvironment.read(SLURM_TASK)
    assert launch == LaunchEnvironment(
        25, 28, 1, 4, 4, address="gpu003", port=20000 + (17 * 1234 + 2) % 10000, address_is_node=True
    )
    restarted = LaunchEnvironment.read(SLURM_TASK | {"SLURM_RESTART_COUNT": "2", "MASTER_ADDR": "10.0.0.3"})
    assert (restarted.attempt, restarted.meeting_point()) == ("2", ("10.0.0.3", launch.port))


def test_torchrun_wins_over_the_srun_that_started_it() -> None:
    assert LaunchEnvironment.read(SLURM_TASK | {"RANK": "3", "WORLD_SIZE": "8"}).world_size == 8


def test_a_shell_of_an_allocation_is_no_task() -> None:
    in_batch_script = {"SLURM_JOB_ID": "1234", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "16"}
    assert LaunchEnvironment.read(in_batch_script) == LaunchEnvironment()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("gpu[003-010,12],cpu1", "gpu003"), ("r[2,5]n[07-08]-ib", "r2n07-ib"), ("n[4]", "n4")],
)
def test_first_node(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_tasks_of_nodes() -> None:
    assert tasks_of_nodes("8(x2),4,6(x1)") == [8, 8, 4, 6]


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not set, but RANK is: start with 'torchrun"),
        (SLURM_TASK | {"RANK": "1"}, "WORLD_SIZE is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK = 2 is not less than WORLD_SIZE = 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK = 'one' is not a number"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set, but WORLD_SIZE is 2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set, but WORLD_SIZE is 2"),
    ],
)
def test_a_part_of_the_variables_is_refused(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        LaunchEnvironment.read(environment).meeting_point()


def test_a_node_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_of_node("localhost") == "localhost"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"node-of-nobody.invalid, is known neither.*set MASTER_ADDR"):
        address_of_node("node-of-nobody.invalid")
