"""Probes alone: each runs on an old Python with its standard library, wherever it is sent, and tells what it finds."""

import ast
import os
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks.check import Context
from glmforge_ops.health.checks.examine import examine
from glmforge_ops.health.checks.outcome import Status
from glmforge_ops.health.checks.probes.nvml import LIBRARY
from glmforge_ops.health.checks.probes.reading import ROOT, command_of, cpus_of, is_orphan
from glmforge_ops.health.checks.registry import CHECKS, choose_checks
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout
from helpers.fake_node import FakeNode, compile_nvml
from helpers.healthy_node import MODEL, healthy, process

PACKAGE = "glmforge_ops.health.checks.probes"
SOURCES = sorted(each.name for each in files(PACKAGE).iterdir() if each.name.endswith(".py"))
ON_NODE = ClusterConfig(gpus_per_node=2, python="python3")

BASIC = "name,uuid,temperature.gpu,utilization.gpu,memory.total,memory.used,persistence_mode"
SMI = (
    (BASIC, f"{MODEL}, GPU-0, 31, 0, 81559, 4, Enabled\n{MODEL}, GPU-1, 88, 0, 81559, 4, Disabled"),
    ("enforced.power.limit", "700.00, 700.00\n400.00, 700.00"),
    ("clocks.sm,clocks.max.sm", "1980, 1980\n1980, 1980"),
    ("clocks.applications.graphics", "[N/A], [N/A]\n[N/A], [N/A]"),
    ("ecc.mode.current", "Enabled, 0\nEnabled, 2"),
    ("clocks_throttle_reasons.active", "0x0000000000000001\n0x0000000000000008"),
    ("--query-remapped-rows", "GPU-0, 0, No, No\nGPU-1, 1, Yes, No"),
    ("--query-compute-apps", "GPU-1, 77"),
    ("driver_version", "535.104.05\n535.104.05"),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(tmp_path: Path, library: Path) -> FakeNode:
    return healthy(tmp_path / "root", library)


def gpus(node: FakeNode) -> list[dict[str, object]]:
    facts = node.gather(["gpu"], ON_NODE).facts["gpu"]
    return [gpu._values for gpu in facts.each("gpus")]  # type: ignore[misc]


@pytest.mark.parametrize("name", SOURCES)
def test_a_probe_needs_python_3_8_and_nothing_else(name: str) -> None:
    source = files(PACKAGE).joinpath(name).read_text(encoding="utf-8")
    for statement in ast.walk(ast.parse(source, feature_version=(3, 8))):
        imported = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        if isinstance(statement, ast.ImportFrom):
            imported = [statement.module or ""]
        for module in imported:
            assert module.split(".")[0] in sys.stdlib_module_names or module.startswith(PACKAGE), module


def test_an_old_driver_tells_what_it_can(node: FakeNode, tmp_path: Path) -> None:
    node.library = compile_nvml(tmp_path, "-DOLD_DRIVER")
    gpu = gpus(node)[0]
    assert (gpu["temperature"], gpu["throttle"], gpu["power_limit"]) == (31, 1, 700.0)
    assert (gpu["rows_pending"], gpu["temperature_memory"], gpu["processes"]) == (None, None, None)


def test_nvidia_smi_tells_the_same_where_the_library_cannot_be_used(node: FakeNode, tmp_path: Path) -> None:
    node.library = tmp_path / "none"
    node.tool("nvidia-smi", *SMI)
    process(node, 77, 1, "python train.py")
    first, second = gpus(node)
    assert (first["name"], first["persistence"], first["clock_application"]) == (MODEL, True, None)
    assert (second["temperature"], second["power_limit"], second["ecc_uncorrected"]) == (88, 400, 2)
    assert (second["rows_pending"], second["rows_failed"], second["throttle"]) == (True, False, 8)
    assert second["memory_total"] == 81559 << 20
    assert second["processes"] == [{"pid": 77, "command": "python train.py", "orphan": True}]
    assert node.gather(["gpu"], ON_NODE).facts["gpu"].text("driver") == "535.104.05"


@pytest.mark.parametrize(
    ("status", "reason"), [(18, "different versions: reboot"), (9, "error 9"), (None, "cannot open shared object")]
)
def test_why_the_driver_cannot_be_asked_is_told(node: FakeNode, tmp_path: Path, status: int, reason: str) -> None:
    if status is None:
        node.library = tmp_path / "none"
    node.gpus["init"] = str(status)
    facts = node.gather(["gpu"], ON_NODE).facts["gpu"]
    assert reason in (facts.text("error") or "")
    assert facts.each("gpus") == []


def test_a_rank_is_an_orphan_when_its_launcher_is_gone(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT, str(node.root))
    assert not is_orphan(61)
    assert not is_orphan(62)
    process(node, 61, 1, "python train.py", environ="RANK=0\0WORLD_SIZE=2")
    assert is_orphan(61)
    assert is_orphan(62), "the child of an orphan is one"
    process(node, 1, 0, "torchrun train.py")  # a container whose first process is the launcher
    assert not is_orphan(61)
    assert command_of(61) == "python train.py"
    assert not is_orphan(99999)


@pytest.mark.parametrize(
    ("cgroup", "orphan"),
    [
        ("0::/system.slice/vllm.service", False),
        ("0::/system.slice/ssh.service", True),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0", True),
        ("0::/user.slice/user-1000.slice/session-3.scope", True),
    ],
)
def test_a_service_on_a_gpu_is_nothing_left_over(node: FakeNode, cgroup: str, orphan: bool) -> None:
    process(node, 900, 1, "python serve.py")
    node.write("/proc/900/cgroup", cgroup)
    node.gpus["0.pid"] = "900"
    assert gpus(node)[0]["processes"] == [{"pid": 900, "command": "python serve.py", "orphan": orphan}]


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), (None, set()), ("x-y,3-", {3})]
)
def test_lists_of_cpus_are_read(text: str | None, cpus: set[int]) -> None:
    assert cpus_of(text) == cpus


@pytest.mark.parametrize(
    ("tool", "output", "expected"),
    [
        ("ntpq", "associd=0 status=0615 leap_none, sync_ntp, offset=-2.5,", ("ntp", True, 0.0025)),
        ("ntpq", "associd=0 status=c016 leap_alarm, sync_unspec, offset=0.0", ("ntp", False, 0.0)),
        ("timedatectl", "yes", ("systemd-timesyncd", True, None)),
        ("timedatectl", "no", ("systemd-timesyncd", False, None)),
    ],
)
def test_other_time_services_are_asked(node: FakeNode, tool: str, output: str, expected: tuple[object, ...]) -> None:
    (node.root / "bin/chronyc").unlink()
    node.tool(tool, ("", output))
    facts = node.gather(["clock"], ON_NODE).facts["clock"]
    assert (facts.text("by"), facts.flag("synchronised"), facts.number("offset")) == expected


def test_a_log_that_cannot_be_read_passes_nothing(node: FakeNode) -> None:
    (node.root / "bin/dmesg").unlink()
    facts = node.gather(["kernel"], ON_NODE).facts["kernel"]
    context = Context(ON_NODE, Thresholds())
    judged = {check.name: check.judge(facts, context) for check in CHECKS if check.probe == "kernel" and check.judge}
    assert {outcome.status for outcome in judged.values()} == {Status.SKIPPED}
    assert len(judged) == 3


def test_old_lines_of_the_log_are_over(node: FakeNode) -> None:
    node.tool(
        "dmesg", ("", "[  100.0] NVRM: Xid (PCI:0000:2a:00): 79, lost\n[  899000.0] NVRM: Xid (0000:2a:00): 13, x")
    )
    facts = node.gather(["kernel"], ON_NODE).facts["kernel"]
    assert [xid.count("xid") for xid in facts.each("xids")] == [79, 13]
    check = next(check for check in CHECKS if check.name == "gpu.xid")
    assert check.judge is not None
    outcome = check.judge(facts, Context(ON_NODE, Thresholds()))
    assert (outcome.status, outcome.value) == (Status.PASS, "1 of programs")


def test_probes_find_a_node_when_they_are_sent_there(node: FakeNode) -> None:
    """The whole way: through a shell into a Python that has nothing of ours, with the modules that probes share."""
    node.gather([], ON_NODE)  # writes what the driver says
    environment = {
        ROOT: str(node.root),
        LIBRARY: str(node.library),
        "FAKE_NVML_STATE": str(node.root / "nvml"),
        "PATH": f"{node.root}/bin:/usr/local/bin:/usr/bin:/bin",
    }
    (node.root / "bin/python3").unlink()  # the probe itself runs in it
    cluster = ClusterConfig(gpus_per_node=2, nodes=["localhost"])
    chosen = choose_checks(CHECKS[0].level, only=["gpu", "nvlink", "pcie", "infiniband", "processes"])
    findings = examine(["localhost"], chosen, Context(cluster, Thresholds()), Fanout(environment=environment))
    statuses = {name: of_hosts["localhost"].status for name, of_hosts in findings.outcomes.items()}
    assert {name for name, status in statuses.items() if status not in (Status.PASS, Status.SKIPPED)} == set()
    assert statuses["gpu.ecc"] is statuses["nvlink.links"] is statuses["infiniband.state"] is Status.PASS


def stale_findings() -> tuple[Status, str]:
    """Of this machine itself."""
    chosen = choose_checks(CHECKS[0].level, only=["processes.stale"])
    cluster = ClusterConfig(gpus_per_node=0)
    outcome = examine(["localhost"], chosen, Context(cluster, Thresholds()), Fanout()).outcomes["processes.stale"]
    return outcome["localhost"].status, outcome["localhost"].value


def test_a_real_rank_without_its_launcher_is_found(tmp_path: Path) -> None:
    """Started by a shell that ends at once, as the ranks of a launcher that was killed."""
    mark = tmp_path / "rank"
    mark.symlink_to("/bin/sleep")
    script = f"{mark} 600 >/dev/null 2>&1 & echo $!"
    started = subprocess.run(
        ["sh", "-c", script], env=os.environ | {"RANK": "0", "WORLD_SIZE": "1"}, stdout=subprocess.PIPE, check=True
    )
    pid = int(started.stdout)
    try:
        assert str(mark) in stale_findings()[1]
        assert f"pid {pid}" in stale_findings()[1]
    finally:
        os.kill(pid, signal.SIGKILL)
    assert str(mark) not in stale_findings()[1]
