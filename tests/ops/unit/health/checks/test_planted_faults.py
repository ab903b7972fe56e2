"""Every check of hardware and versions notices its own planted fault, and only that one; after the mend it passes."""

from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks.check import Check, Context
from glmforge_ops.health.checks.examine import outcomes_of
from glmforge_ops.health.checks.outcome import Outcome, Status
from glmforge_ops.health.checks.probe import NodeFacts
from glmforge_ops.health.checks.registry import CHECKS
from glmforge_ops.health.checks.thresholds import Thresholds
from helpers.fake_node import FakeNode, compile_nvml
from helpers.healthy_node import healthy
from helpers.node_faults import EVERYWHERE, FAULTS, ROCE
from helpers.planted_faults import PlantedFault, matrix

PROBES = (
    "clock",
    "gpu",
    "infiniband",
    "kernel",
    "limits",
    "memory",
    "numa",
    "nvlink",
    "pcie",
    "processes",
    "versions",
)
OURS = [check for check in CHECKS if check.probe in PROBES and check.act is None]
HOSTS = ("node1", "node2", "node3")


class Cluster:
    """Three healthy nodes, of which one is at hand to be broken; the others are its facts."""

    def __init__(self, node: FakeNode, network: str) -> None:
        self.node = node
        config = {
            "gpus_per_node": 2,
            "python": "python3",
            "network": network,
            "expected": {"numpy": "2.4.6"},
            "nodes": list(HOSTS),
        }
        self.context = Context(ClusterConfig.model_validate(config), Thresholds())
        self.well = self.gather(PROBES)

    def gather(self, probes: tuple[str, ...]) -> NodeFacts:
        return self.node.gather(list(probes), self.context.cluster)

    def outcomes(self, nodes: dict[str, NodeFacts], checks: list[Check] = OURS) -> dict[str, dict[str, Outcome]]:
        return {check.name: dict(outcomes_of(check, nodes, self.context)) for check in checks}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Cluster:
    return Cluster(healthy(tmp_path_factory.mktemp("node") / "root", library), "infiniband")


@pytest.fixture(scope="module")
def roce_cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Cluster:
    return Cluster(healthy(tmp_path_factory.mktemp("roce") / "root", library, "Ethernet"), "roce")


def noticed(outcomes: dict[str, dict[str, Outcome]], host: str) -> set[str]:
    return {name for name, of_hosts in outcomes.items() if of_hosts[host].status in (Status.FAIL, Status.WARNING)}


def check_fault(cluster: Cluster, fault: PlantedFault[FakeNode], is_everywhere: bool = False) -> set[str]:
    """Planted, it is noticed by its checks, which tell a mend; the other nodes stay well, and it can be mended."""
    with fault.plant(cluster.node):
        broken = cluster.gather(PROBES)
    nodes = {host: broken if is_everywhere or host == "node2" else cluster.well for host in HOSTS}
    outcomes = cluster.outcomes(nodes)
    assert {name: outcomes[name]["node2"].value for name in noticed(outcomes, "node2")}.keys() == fault.checks, outcomes
    assert noticed(outcomes, "node1") == (fault.checks if is_everywhere else set())
    for name in fault.checks:
        assert outcomes[name]["node2"].mend, name
        assert outcomes[name]["node2"].threshold, name
    chosen = [check for check in OURS if check.name in fault.checks]
    mended = cluster.gather(tuple({check.probe for check in chosen}))
    after = cluster.outcomes({**dict.fromkeys(HOSTS, cluster.well), "node2": mended}, chosen)
    assert {of_hosts["node2"].status for of_hosts in after.values()} == {Status.PASS}, after
    return noticed(outcomes, "node2")


@cache
def skipped_names(is_roce: bool) -> frozenset[str]:
    """What has nothing to say on a healthy node of this network."""
    if is_roce:
        return frozenset({"infiniband.subnet-manager"})
    return frozenset(check.name for check in OURS if check.name.startswith("roce."))


@pytest.mark.parametrize("network", ["infiniband", "roce"])
def test_a_healthy_cluster_passes(cluster: Cluster, roce_cluster: Cluster, network: str) -> None:
    chosen = roce_cluster if network == "roce" else cluster
    outcomes = chosen.outcomes(dict.fromkeys(HOSTS, chosen.well))
    for name, of_hosts in outcomes.items():
        expected = Status.SKIPPED if name in skipped_names(network == "roce") else Status.PASS
        assert {outcome.status for outcome in of_hosts.values()} == {expected}, (name, of_hosts)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_its_own_check_notices_a_fault(cluster: Cluster, fault: PlantedFault[FakeNode]) -> None:
    check_fault(cluster, fault)


@pytest.mark.parametrize("fault", EVERYWHERE, ids=str)
def test_a_fault_of_all_nodes_is_noticed(cluster: Cluster, fault: PlantedFault[FakeNode]) -> None:
    check_fault(cluster, fault, is_everywhere=True)


@pytest.mark.parametrize("fault", ROCE, ids=str)
def test_a_fault_of_roce_is_noticed(roce_cluster: Cluster, fault: PlantedFault[FakeNode]) -> None:
    check_fault(roce_cluster, fault)


def test_every_check_has_a_fault() -> None:
    covered = {name for fault in (*FAULTS, *EVERYWHERE, *ROCE) for name in fault.checks}
    assert covered == {check.name for check in OURS}


def test_faults_have_different_names() -> None:
    names = [fault.name for fault in (*FAULTS, *EVERYWHERE, *ROCE)]
    assert len(set(names)) == len(names)


def test_two_faults_are_both_noticed(cluster: Cluster) -> None:
    by_name = {fault.name: fault for fault in FAULTS}
    chosen = [by_name["a GPU is hot"], by_name["a slow link"], by_name["a small /dev/shm"]]
    with ExitStack() as stack:
        for fault in chosen:
            stack.enter_context(fault.plant(cluster.node))
        broken = cluster.gather(PROBES)
    outcomes = cluster.outcomes({**dict.fromkeys(HOSTS, cluster.well), "node2": broken})
    assert noticed(outcomes, "node2") == set().union(*(fault.checks for fault in chosen))


def test_the_matrix_names_faults_and_checks() -> None:
    faults = FAULTS[:2]
    table = matrix(faults, ["gpu.count", "gpu.model"], {fault.name: fault.checks for fault in faults})
    assert table.splitlines() == ["fault,gpu.count,gpu.model", "a GPU is missing,x,", "a GPU fell off the bus,x,"]


@pytest.mark.parametrize("expected", ["2.12.0", "2.12.0+cu128"])
def test_a_version_that_the_cluster_expects_beats_the_majority(cluster: Cluster, expected: str) -> None:
    config = cluster.context.cluster.model_copy(update={"expected": {"torch": expected}})
    check = next(check for check in OURS if check.name == "versions.torch-equal")
    outcomes = outcomes_of(check, dict.fromkeys(HOSTS, cluster.well), Context(config, Thresholds()))
    assert {outcome.status for outcome in outcomes.values()} == {Status.FAIL}
    assert outcomes["node1"].mend == "install torch 2.12.0"


def test_one_node_alone_is_compared_with_nothing(cluster: Cluster) -> None:
    outcomes = cluster.outcomes({"node1": cluster.well})
    compared = {check.name for check in OURS if check.compare is not None}
    passed = {name for name in compared if outcomes[name]["node1"].status is Status.PASS}
    assert passed == {"clock.skew", "versions.expected", "versions.installed", "infiniband.rate"}
