"""What a node says of itself is no more than a claim: nonsense is one clear failure there, and nothing elsewhere."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks.check import Context
from glmforge_ops.health.checks.examine import outcomes_of
from glmforge_ops.health.checks.facts import Facts, Times
from glmforge_ops.health.checks.outcome import Outcome, Status
from glmforge_ops.health.checks.probe import NodeFacts
from glmforge_ops.health.checks.registry import CHECKS
from glmforge_ops.health.checks.thresholds import Thresholds
from helpers.fake_node import compile_nvml
from helpers.healthy_node import healthy

PROBES = ["clock", "gpu", "infiniband", "kernel", "limits", "memory", "numa", "nvlink", "pcie", "processes", "versions"]
HOSTILE = [
    "12",
    "x" * 5000,
    "\x1b[31m",
    "",
    -1,
    -1e300,
    1e300,
    10**18,
    0.5,
    True,
    None,
    [],
    {},
    [{}] * 5000,
    [-1],
    ["x"],
]
TIMES = Times(1000.0, 1000.2, 1000.3, 1000.5)
LONGEST = 2000


@pytest.fixture(scope="module", params=["InfiniBand", "Ethernet"])
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("node")
    node = healthy(directory / "root", compile_nvml(directory), request.param)
    found = node.gather(PROBES, ClusterConfig(gpus_per_node=2, python="python3")).facts
    return {name: dict(found[name]._values) for name in PROBES}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything within."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    if isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from places(inner, (*path, index))


def with_value(values: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(values)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def judge(
    probe: str, well: dict[str, Any], ill: dict[str, Any], network: str | None = None
) -> dict[str, dict[str, Outcome]]:
    context = Context(ClusterConfig.model_validate({"gpus_per_node": 2, "network": network}), Thresholds())
    nodes = {host: NodeFacts({probe: Facts(ill if host == "b" else well, TIMES)}) for host in ("a", "b", "c")}
    chosen = [check for check in CHECKS if check.probe == probe and check.act is None]
    return {check.name: dict(outcomes_of(check, nodes, context)) for check in chosen}


@pytest.mark.parametrize("probe", PROBES)
def test_nonsense_of_one_node_stays_there(facts: dict[str, Any], probe: str) -> None:
    well = facts[probe]
    usual = judge(probe, well, well)
    for path in places(well):
        for value in HOSTILE:
            outcomes = judge(probe, well, with_value(well, path, value))
            for name, of_hosts in outcomes.items():
                assert of_hosts["a"].status is usual[name]["a"].status, (name, path, value)
                told = of_hosts["b"]
                assert len(told.value) < LONGEST, (name, path, value)
                assert (told.value + told.mend + told.threshold).isprintable(), (name, path, value)


@pytest.mark.parametrize(
    ("probe", "path", "value", "check"),
    [
        ("gpu", ("gpus",), "eight", "gpu.count"),
        ("gpu", ("gpus",), [{}] * 5000, "gpu.count"),
        ("gpu", ("gpus", 0, "temperature"), "31", "gpu.temperature"),
        ("gpu", ("gpus", 0, "ecc_uncorrected"), -1, "gpu.ecc"),
        ("gpu", ("gpus", 0, "throttle"), 0.5, "gpu.throttle"),
        ("gpu", ("gpus", 0, "name"), 7, "gpu.model"),
        ("nvlink", ("gpus", 0, "inactive"), ["x"], "nvlink.links"),
        ("pcie", ("devices", 0, "width"), "16", "pcie.width"),
        ("versions", ("packages", "torch"), 2.11, "versions.torch-equal"),
        ("versions", ("kernel",), "new", "versions.kernel-minimum"),
        ("infiniband", ("ports", 0, "rate"), "400", "infiniband.rate"),
        ("infiniband", ("ports", 0, "link_downed"), -3, "infiniband.errors"),
        ("numa", ("online",), -4, "numa.cpus"),
        ("clock", ("synchronised",), "yes", "clock.synchronised"),
        ("processes", ("stale",), {}, "processes.stale"),
        ("processes", ("load",), -1, "processes.load"),
        ("memory", ("total",), "much", "memory.total"),
        ("memory", ("shm_total",), -1, "memory.shm"),
        ("kernel", ("xids",), [1, 2], "gpu.xid"),
        ("limits", ("open_files",), "many", "limits.files"),
    ],
)
def test_nonsense_is_one_clear_failure(
    facts: dict[str, Any], probe: str, path: tuple[Any, ...], value: Any, check: str
) -> None:
    ill = with_value(facts[probe], path, value)
    if check == "limits.files":
        ill["open_files_unlimited"] = False
    outcomes = judge(probe, facts[probe], ill)[check]
    assert outcomes["b"].status is Status.FAIL
    assert outcomes["b"].value.startswith("nothing is known: ")
    assert outcomes["a"].status is not Status.FAIL, "the others are none the worse for it"


def test_what_is_not_known_never_passes(facts: dict[str, Any]) -> None:
    """A node that could not find anything out is skipped; its time goes with the answer, and a list of none is one."""
    empty = {"interrupts": [], "stale": [], "stuck": []}
    for probe in PROBES:
        nothing = {
            name: empty.get(name, [] if isinstance(value, list) else None) for name, value in facts[probe].items()
        }
        for name, of_hosts in judge(probe, facts[probe], nothing).items():
            if name not in ("processes.stale", "processes.stuck", "clock.skew"):
                assert of_hosts["b"].status is not Status.PASS, (name, of_hosts["b"])
