import pytest

from glmforge.cluster.launch import LaunchEnvironment


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4"}, 1),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2),
        ({"WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}, 2),
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
