"""Every check of hardware and versions notices its own planted fault, and only that one; nonsense that a node says
fails that node alone, and what a node does not know never passes.
"""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks.check import Check, Context, Facts, Gather, Outcome, Status, unknown
from glmforge_ops.health.checks.examine import CHECKS, run_check, session_of
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout
from helpers.fake_node import FakeNode, compile_nvml
from helpers.healthy_node import healthy, process
from helpers.node_faults import EVERYWHERE, FAULTS, ROCE
from helpers.planted_faults import PlantedFault

SUBJECTS = ("versions", "gpu", "nvlink", "pcie", "infiniband", "roce", "clock", "processes", "memory", "limits")
ACTS = ("gpu.diagnostics",)
OURS = [check for check in CHECKS if check.name.split(".")[0] in SUBJECTS and check.name not in ACTS]
GATHER = list(dict.fromkeys(check.gather for check in OURS if check.gather is not None))
HOSTS = ("node1", "node2", "node3")

Of = dict[Gather, Facts | Outcome]


class Cluster:
    """Three healthy nodes, of which one is at hand to be broken; the others are its facts."""

    def __init__(self, node: FakeNode, network: str, **more: Any) -> None:
        self.node = node
        config = {"gpus_per_node": 2, "python": "python3", "network": network, "expected": {"numpy": "2.4.6"}}
        self.context = Context(ClusterConfig.model_validate(config | {"nodes": list(HOSTS)} | more), Thresholds())
        self.well = self.gather()

    def gather(self) -> Of:
        return self.node.gather(GATHER, self.context.cluster)

    def outcomes(self, nodes: Mapping[str, Of], checks: list[Check] = OURS) -> dict[str, dict[str, Outcome]]:
        session = session_of(nodes, self.context, Fanout())
        return {check.name: run_check(check, session) for check in checks}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def infiniband(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Cluster:
    return Cluster(healthy(tmp_path_factory.mktemp("node") / "root", library), "infiniband")


@pytest.fixture(scope="module")
def roce(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Cluster:
    return Cluster(healthy(tmp_path_factory.mktemp("roce") / "root", library, "Ethernet"), "roce")


def noticed(outcomes: dict[str, dict[str, Outcome]], host: str) -> set[str]:
    return {name for name, of_hosts in outcomes.items() if of_hosts[host].status in (Status.FAIL, Status.WARNING)}


def check_fault(cluster: Cluster, fault: PlantedFault[FakeNode], is_everywhere: bool = False) -> None:
    """Planted, it is noticed by its checks, which say a fix; the other nodes stay well."""
    with fault.plant(cluster.node):
        broken = cluster.gather()
    nodes = {host: broken if is_everywhere or host == "node2" else cluster.well for host in HOSTS}
    outcomes = cluster.outcomes(nodes)
    assert noticed(outcomes, "node2") == fault.checks, outcomes
    assert noticed(outcomes, "node1") == (fault.checks if is_everywhere else set())
    for name in fault.checks:
        assert outcomes[name]["node2"].fix, name
        assert outcomes[name]["node2"].threshold, name


def test_a_healthy_cluster_passes(infiniband: Cluster, roce: Cluster) -> None:
    for cluster, silent in ((infiniband, "roce."), (roce, "never")):
        for name, of_hosts in cluster.outcomes(dict.fromkeys(HOSTS, cluster.well)).items():
            expected = Status.SKIPPED if name.startswith(silent) else Status.PASS
            assert {outcome.status for outcome in of_hosts.values()} == {expected}, (name, of_hosts)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_its_own_check_notices_a_fault(infiniband: Cluster, fault: PlantedFault[FakeNode]) -> None:
    check_fault(infiniband, fault)


@pytest.mark.parametrize("fault", EVERYWHERE, ids=str)
def test_a_fault_of_all_nodes_is_noticed(infiniband: Cluster, fault: PlantedFault[FakeNode]) -> None:
    check_fault(infiniband, fault, is_everywhere=True)


@pytest.mark.parametrize("fault", ROCE, ids=str)
def test_a_fault_of_roce_is_noticed(roce: Cluster, fault: PlantedFault[FakeNode]) -> None:
    check_fault(roce, fault)


def test_every_check_has_a_fault() -> None:
    covered = {name for fault in (*FAULTS, *EVERYWHERE, *ROCE) for name in fault.checks}
    assert covered == {check.name for check in OURS}


def test_a_version_that_the_cluster_expects_beats_the_majority(infiniband: Cluster) -> None:
    cluster = Cluster(infiniband.node, "infiniband", expected={"torch": "2.12.0+cu128"})
    outcome = cluster.outcomes(dict.fromkeys(HOSTS, cluster.well))["versions.torch-equal"]["node1"]
    assert (outcome.status, outcome.fix) == (Status.FAIL, "install torch 2.12.0")


def test_one_node_alone_is_compared_with_nothing(infiniband: Cluster) -> None:
    outcomes = infiniband.outcomes({"node1": infiniband.well})
    assert outcomes["memory.total"]["node1"].status is outcomes["gpu.model"]["node1"].status is Status.SKIPPED
    assert noticed(outcomes, "node1") == set()


def test_without_the_library_gpus_are_counted_and_the_rest_is_skipped(
    infiniband: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node where glmforge is not installed yet."""
    monkeypatch.setattr("glmforge_ops.health.checks.gpu._pynvml", lambda python: None)
    with infiniband.node.file("/dev/nvidia0", ""), infiniband.node.file("/dev/nvidiactl", ""):
        outcomes = infiniband.outcomes({"node1": infiniband.gather()})
    assert outcomes["gpu.count"]["node1"].value == "1 of 2 GPUs (nvidia-ml-py is not installed)"
    for name in ("gpu.ecc", "gpu.throttle", "gpu.processes", "gpu.model", "nvlink.links"):
        assert outcomes[name]["node1"].status is Status.SKIPPED, name


def test_an_old_driver_tells_what_it_can(infiniband: Cluster, tmp_path: Path) -> None:
    with infiniband.node.attribute("library", compile_nvml(tmp_path, "-DOLD_DRIVER")):
        outcomes = infiniband.outcomes({"node1": infiniband.gather()})
    assert outcomes["gpu.temperature"]["node1"].status is outcomes["gpu.throttle"]["node1"].status is Status.PASS
    assert outcomes["gpu.remapped-rows"]["node1"].status is Status.SKIPPED


def test_a_driver_that_does_not_start_says_why(infiniband: Cluster) -> None:
    with infiniband.node.attribute("gpus", infiniband.node.gpus | {"init": "18"}):
        outcome = infiniband.outcomes({"node1": infiniband.gather()})["gpu.count"]["node1"]
    assert "version mismatch" in outcome.value


def test_a_log_that_cannot_be_read_passes_nothing_and_old_lines_are_over(infiniband: Cluster) -> None:
    names = ("gpu.xid", "memory.machine-checks", "memory.out-of-memory")
    with infiniband.node.tool_instead("dmesg"):
        outcomes = infiniband.outcomes({"node1": infiniband.gather()})
    assert {outcomes[name]["node1"].status for name in names} == {Status.SKIPPED}
    old = "[  100.0] NVRM: Xid (PCI:0000:2a:00): 79, lost\n[  899000.0] NVRM: Xid (0000:2a:00): 13, of a program"
    with infiniband.node.tool_instead("dmesg", ("", old)):
        outcomes = infiniband.outcomes({"node1": infiniband.gather()})
    assert {outcomes[name]["node1"].status for name in names} == {Status.PASS}


@pytest.mark.parametrize(
    ("cgroup", "is_left"),
    [("0::/system.slice/vllm.service", False), ("0::/system.slice/slurmstepd.scope/job_7/step_0", True)],
)
def test_a_service_on_a_gpu_is_nothing_left_over(infiniband: Cluster, cgroup: str, is_left: bool) -> None:
    node = infiniband.node
    process(node, 950, 1, "python serve.py")
    with node.file("/proc/950/cgroup", cgroup), node.driver(pid=950):
        outcome = infiniband.outcomes({"node1": infiniband.gather()})["gpu.processes"]["node1"]
    assert (outcome.status is Status.FAIL) == is_left


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything within."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


HOSTILE = ("12", "x" * 4000, -1, 1e300, 0.5, True, None, [], {}, [{}] * 50, [-1], ["x"])


@pytest.mark.parametrize("network", ["infiniband", "roce"])
def test_nonsense_of_one_node_stays_there(request: pytest.FixtureRequest, network: str) -> None:
    cluster: Cluster = request.getfixturevalue(network)
    usual = cluster.outcomes(dict.fromkeys(HOSTS, cluster.well))
    for gather in GATHER:
        checks = [check for check in OURS if check.gather is gather]
        for path in places(cluster.well[gather]):
            for value in HOSTILE:
                changed: Any = copy.deepcopy(cluster.well[gather])
                inner = changed
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = value
                nodes = {"a": cluster.well, "b": {**cluster.well, gather: changed}, "c": cluster.well}
                for name, of_hosts in cluster.outcomes(nodes, checks).items():
                    assert of_hosts["a"].status is usual[name]["node1"].status, (name, path, value)
                    assert len(of_hosts["b"].value) < 5000, (name, path, value)


def test_what_is_not_known_never_passes(infiniband: Cluster) -> None:
    """A node that answers with nothing, or with an error, passes no check."""
    nothing: list[Facts | Outcome] = [{"clock": [0.0, None, None, 0.0]}, unknown("OSError: no such file")]
    for facts in nothing:
        outcomes = infiniband.outcomes({"a": dict.fromkeys(GATHER, facts), "b": infiniband.well, "c": infiniband.well})
        assert Status.PASS not in {of_hosts["a"].status for of_hosts in outcomes.values()}
        assert outcomes["gpu.ecc"]["a"].value.startswith("no usable answer: ")
