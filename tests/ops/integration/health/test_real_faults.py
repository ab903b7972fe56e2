"""Faults really planted on hosts in namespaces, each named by its own check alone, and passed after the repair.

Every check of the level `standard` runs. What a check says of the machine that all these hosts are (few open files, a
load, no GPUs) it says of all of them, with and without a fault, and does not count.
"""

import secrets
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.dev import DevOptions, development_cluster
from glmforge_ops.health.checks.check import Context, Level, Status
from glmforge_ops.health.checks.examine import choose_checks, examine
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.machines import fanout_of
from helpers.dev_cluster import hosts_or_skip
from helpers.packages import install_or_skip
from helpers.planted_faults import PlantedFault
from helpers.real_faults import FAULTS, MASTER_PORT, SHM, TAKEN_PORT, Node, furnish

OF_THE_MACHINE = (
    "processes.load",
    "processes.stuck",
    "memory.available",
    "memory.out-of-memory",
    "memory.machine-checks",
)
"""Held against a clock, or against what others do on this machine at the moment."""

BY_NAME = {fault.name: fault for fault in FAULTS}
PROBE_LIMIT_S = 120.0

Noticed = frozenset[tuple[str, str]]
"""Checks and the nodes on which they do not pass."""


@contextmanager
def nodes_of(directory: Path, num: int) -> Iterator[list[Node]]:
    hosts_or_skip()
    install_or_skip(("nft", "faketime"), ("nftables", "faketime"))
    for name in ("shared", "checkpoints", "data"):
        (directory / name).mkdir()
    (directory / "data/train.bin").write_bytes(secrets.token_bytes(200_000))
    with development_cluster(directory / "c", DevOptions(nodes=num, gpus=0, slurm=False, shm_size=SHM)) as cluster:
        nodes = [Node(cluster, name, directory) for name in cluster.nodes]
        for node in nodes:
            furnish(node)
        yield nodes


def notice(nodes: list[Node]) -> Noticed:
    """What all checks say of these nodes that is not good."""
    one = nodes[0]
    config = ClusterConfig(
        nodes=[node.name for node in nodes],
        gpus_per_node=0,
        local_path=one.cluster.local_path,
        shared_path=one.shared,
        checkpoint_path=one.checkpoints,
        data_paths=[one.data],
        master_port=MASTER_PORT,
        python=sys.executable,
        ssh={"command": shlex.join(one.cluster.ssh_command)},
    )
    checks = choose_checks(Level.STANDARD, skip=OF_THE_MACHINE)
    context = Context(config, Thresholds({"network-trip": 1e7}))  # the machine may be busy
    found = examine([node.name for node in nodes], checks, context, fanout_of(config), PROBE_LIMIT_S)
    return frozenset(
        (check, host)
        for check, of_hosts in found.outcomes.items()
        for host, outcome in of_hosts.items()
        if outcome.status in (Status.FAIL, Status.WARNING)
    )


def expected(*planted: tuple[PlantedFault[Node], Node]) -> Noticed:
    return frozenset((check, node.name) for fault, node in planted for check in fault.checks)


def test_several_faults_at_once_are_each_named_and_gone_after_the_repair(tmp_path: Path) -> None:
    with nodes_of(tmp_path, 3) as nodes:
        _, second, third = nodes
        planted = [
            (BY_NAME["a full disk"], second),
            (BY_NAME["other data"], second),
            (BY_NAME["a closed port"], second),
            (BY_NAME["a read-only directory of checkpoints"], third),
            (BY_NAME["a process of an earlier job"], third),
            (BY_NAME["a name that is the node's own loopback"], third),
            (BY_NAME["a link at 100 Mbit/s"], third),
        ]
        with ExitStack() as stack:
            for fault, node in planted:
                stack.enter_context(fault.plant(node))
            noticed = notice(nodes)
        always = notice(nodes)
        assert noticed - always == expected(*planted)
        assert always <= noticed


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Node], Noticed]]:
    with nodes_of(tmp_path_factory.mktemp("eight"), 8) as nodes:
        yield nodes, notice(nodes)


@pytest.mark.chaos
def test_faults_on_all_nodes_at_once_are_each_named(eight: tuple[list[Node], Noticed]) -> None:
    nodes, always = eight
    names = (
        (),
        ("a node that refuses the key",),
        ("a host key that has changed",),
        ("no ssh key on a node", "another version of the package", "a small /dev/shm"),
        ("a read-only disk", "another MTU", "another directory for shared storage"),
        ("shared storage that is not mounted", "data that are missing"),
        ("a clock that is wrong",),
        ("a harmful variable in a login",),
    )
    planted = [(TAKEN_PORT, nodes[0])]
    planted += [(BY_NAME[name], node) for node, of_node in zip(nodes, names, strict=True) for name in of_node]
    with ExitStack() as stack:
        for fault, node in planted:
            stack.enter_context(fault.plant(node))
        assert notice(nodes) - always == expected(*planted)


@pytest.mark.chaos
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_each_fault_is_noticed_by_its_own_check_only(
    eight: tuple[list[Node], Noticed], fault: PlantedFault[Node]
) -> None:
    nodes, always = eight
    with fault.plant(nodes[4]):
        assert notice(nodes) - always == expected((fault, nodes[4]))
    assert notice(nodes) == always


@pytest.mark.chaos
def test_a_taken_port_is_the_masters(eight: tuple[list[Node], Noticed]) -> None:
    nodes, always = eight
    with TAKEN_PORT.plant(nodes[0]):
        assert notice(nodes) - always == expected((TAKEN_PORT, nodes[0]))
    assert notice(nodes) == always
