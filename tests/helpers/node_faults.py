"""Faults of a node that is a directory (`fake_node`), each with the checks that must notice it: those, no others.

`FAULTS` are planted on one node of three with InfiniBand, `EVERYWHERE` on all three, `ROCE` on one of three with RoCE.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from helpers.fake_node import GIB, FakeNode
from helpers.healthy_node import PYTHON, chrony, limits, meminfo, process, qos, topology
from helpers.planted_faults import PlantedFault

Plant = Callable[[FakeNode], AbstractContextManager[None]]
_GPU, _NIC = "/sys/bus/pci/devices/0000:2a:00.0", "/sys/bus/pci/devices/0000:2b:00.0"
_PORT = "/sys/class/infiniband/mlx5_1/ports/1"
_RANK = "RANK=0\0WORLD_SIZE=2"


def _fault(name: str, plant: Plant, *checks: str) -> PlantedFault[FakeNode]:
    return PlantedFault(name, plant, frozenset(checks))


def _file(path: str, text: object) -> Plant:
    return lambda node: node.file(path, text)


def _driver(**values: object) -> Plant:
    return lambda node: node.driver(**values)


def _attribute(name: str, value: object) -> Plant:
    return lambda node: node.attribute(name, value)


def _tool(name: str, output: str) -> Plant:
    return lambda node: node.tool_instead(name, ("", output))


def _log(line: str, at_s: float = 899000.0) -> Plant:
    return _tool("dmesg", f"[    0.000000] Linux version\n[{at_s:12.6f}] {line}")


def _python(**changes: Any) -> Plant:
    packages = PYTHON["packages"] | changes.pop("packages", {})  # type: ignore[operator]
    return _tool("python3", json.dumps(PYTHON | changes | {"packages": packages}))


def _all(*plants: Plant) -> Plant:
    @contextmanager
    def plant(node: FakeNode) -> Iterator[None]:
        with ExitStack() as stack:
            for each in plants:
                stack.enter_context(each(node))
            yield

    return plant


@contextmanager
def _gpu_missing(node: FakeNode) -> Iterator[None]:
    with node.attribute("gpus", node.gpus | {"gpus": "1"}):
        yield


@contextmanager
def _stale_rank(node: FakeNode) -> Iterator[None]:
    process(node, 700, 1, "python train.py", environ=_RANK)
    process(node, 701, 700, "python loader", environ=_RANK)
    yield
    process(node, 700, 1, "sshd")
    process(node, 701, 700, "bash")


@contextmanager
def _stuck(node: FakeNode) -> Iterator[None]:
    process(node, 800, 1, "ls /shared", state="D")
    yield
    process(node, 800, 1, "ls /shared")


@contextmanager
def _gpu_held(node: FakeNode) -> Iterator[None]:
    """By a program that nobody started as a rank, but whose parent is gone."""
    process(node, 900, 1, "python evaluate.py")
    with node.driver(pid=900, memory_used=40 * GIB):
        yield


@contextmanager
def _errors_grow(node: FakeNode) -> Iterator[None]:
    path = f"{_PORT}/counters/symbol_error"

    def grow() -> None:
        node.write(path, int((node.root / path.lstrip("/")).read_text()) + 12)

    with node.file(path, 0), node.attribute("while_waiting", grow):
        yield


@contextmanager
def _no_second_card(node: FakeNode) -> Iterator[None]:
    """The kernel lost it: it is in none of its lists."""
    cards = node.root / "sys/class/infiniband"
    (cards / "mlx5_1").rename(node.root / "mlx5_1")
    yield
    (node.root / "mlx5_1").rename(cards / "mlx5_1")


@contextmanager
def _no_cards(node: FakeNode) -> Iterator[None]:
    cards = node.root / "sys/class/infiniband"
    cards.rename(node.root / "cards")
    yield
    (node.root / "cards").rename(cards)


FAULTS = [
    _fault("a GPU is missing", _gpu_missing, "gpu.count"),
    _fault("a GPU fell off the bus", _driver(lost=15), "gpu.count"),
    _fault("another model of GPU", _driver(name="NVIDIA H100 PCIe"), "gpu.model"),
    _fault("an uncorrected memory error of a GPU", _driver(ecc_uncorrected=3), "gpu.ecc"),
    _fault("ECC of a GPU is off", _driver(ecc=0), "gpu.ecc-mode"),
    _fault("a remapped row waits for a reset", _driver(rows_pending=1), "gpu.remapped-rows"),
    _fault("a row could not be remapped", _driver(rows_failed=1), "gpu.remapped-rows"),
    _fault("hardware lowers a GPU's clocks", _driver(throttle=0x88), "gpu.throttle"),
    _fault("heat lowers a GPU's clocks", _driver(throttle=0x20), "gpu.throttle"),
    _fault("application clocks were lowered", _driver(clock_application=1200), "gpu.clocks"),
    _fault("a GPU is hot", _driver(temperature=88), "gpu.temperature"),
    _fault("a GPU's power limit was lowered", _driver(power_limit=400000), "gpu.power"),
    _fault("persistence mode is off", _driver(persistence=0), "gpu.persistence"),
    _fault("an ended job's process holds a GPU", _gpu_held, "gpu.processes"),
    _fault("nobody's memory on a GPU", _driver(memory_used=30 * GIB), "gpu.processes"),
    _fault("Xid 79", _log("NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus."), "gpu.xid"),
    _fault("an unknown Xid", _log("NVRM: Xid (PCI:0000:2a:00): 999, pid=1"), "gpu.xid"),
    _fault("an NVLink link is down", _driver(links_down=1), "nvlink.links"),
    _fault("NVLink links are missing", _driver(links=12), "nvlink.links"),
    _fault("GPUs are joined through the CPU", _tool("nvidia-smi", topology(between="SYS")), "nvlink.topology"),
    _fault("a network card is in the wrong slot", _tool("nvidia-smi", topology(far="SYS")), "nvlink.topology"),
    _fault("a GPU on 8 lanes", _file(f"{_GPU}/current_link_width", 8), "pcie.width"),
    _fault("a network card on PCIe 3", _file(f"{_NIC}/current_link_speed", "8.0 GT/s PCIe"), "pcie.speed"),
    _fault(
        "a network card in a slow slot",
        _file("/sys/devices/pci0000:00/0000:2b:00.1/max_link_speed", "16.0 GT/s PCIe"),
        "pcie.speed",
    ),
    _fault("another driver", _file("/sys/module/nvidia/version", "550.54.14"), "versions.driver-equal"),
    _fault("torch for another CUDA", _python(cuda="12.6"), "versions.cuda-equal"),
    _fault("another NCCL", _python(packages={"nvidia-nccl-cu12": "2.27.5"}), "versions.nccl-equal"),
    _fault("another torch", _python(packages={"torch": "2.12.0+cu128"}), "versions.torch-equal"),
    _fault("another glmforge", _python(packages={"glmforge": "0.0.9"}), "versions.glmforge-equal"),
    _fault("another Python", _python(python="3.12.1"), "versions.python-equal"),
    _fault("another kernel", _file("/proc/sys/kernel/osrelease", "5.15.0-91-generic"), "versions.kernel-equal"),
    _fault("another system", _file("/etc/os-release", "ID=ubuntu\nVERSION_ID=20.04"), "versions.os-equal"),
    _fault("no torch", _python(packages={"torch": None}), "versions.installed"),
    _fault("no Python", lambda node: node.tool_instead("python3"), "versions.python-runs"),
    _fault("a package of another version", _python(packages={"numpy": "1.26.4"}), "versions.expected"),
    _fault("a network card is missing", _no_second_card, "infiniband.count"),
    _fault(
        "a link is down",
        _all(_file(f"{_PORT}/phys_state", "3: Disabled"), _file(f"{_PORT}/state", "1: DOWN")),
        "infiniband.state",
    ),
    _fault("a slow link", _file(f"{_PORT}/rate", "200 Gb/sec (4X HDR)"), "infiniband.rate"),
    _fault("errors grow on a link", _errors_grow, "infiniband.errors"),
    _fault("no subnet manager", _file(f"{_PORT}/sm_lid", "0x0"), "infiniband.subnet-manager"),
    _fault("a small MTU", _tool("ibv_devinfo", "\t\tactive_mtu: 2048 (4)"), "infiniband.mtu"),
    _fault(
        "no way from cards to GPUs",
        _file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64"),
        "infiniband.gpu-direct",
    ),
    _fault("a clock an hour ahead", _attribute("skew_s", 3600.0), "clock.skew"),
    _fault("a clock five seconds behind", _attribute("skew_s", -5.0), "clock.skew"),
    _fault("a clock that nobody keeps", _tool("chronyc", chrony(leap="Not synchronised")), "clock.synchronised"),
    _fault("a rank of an ended job", _stale_rank, "processes.stale"),
    _fault("a process stuck in the kernel", _stuck, "processes.stuck"),
    _fault("a busy node", _file("/proc/loadavg", "9.52 4.40 1.33 1/900 4242"), "processes.load"),
    _fault(
        "a memory module is off", _file("/proc/meminfo", meminfo(total=990000000, available=950000000)), "memory.total"
    ),
    _fault("memory is taken", _file("/proc/meminfo", meminfo(available=300000000)), "memory.available"),
    _fault("an uncorrected memory error", _file("/sys/devices/system/edac/mc/mc0/ue_count", 1), "memory.errors"),
    _fault(
        "a small /dev/shm", _all(_attribute("shm_total", GIB // 16), _attribute("shm_free", GIB // 16)), "memory.shm"
    ),
    _fault("a full /dev/shm", _attribute("shm_free", 4 * GIB), "memory.shm-use"),
    _fault("a machine check", _log("mce: [Hardware Error]: Machine check events logged"), "memory.machine-checks"),
    _fault("a process was killed", _log("Out of memory: Killed process 445 (python)"), "memory.out-of-memory"),
    _fault("few open files", _file("/proc/self/limits", limits(files=1024)), "limits.files"),
    _fault("few processes", _file("/proc/self/limits", limits(processes=4096)), "limits.processes"),
    _fault("little locked memory", _file("/proc/self/limits", limits(locked=65536)), "limits.locked-memory"),
]

EVERYWHERE = [
    _fault("no network card at all", _no_cards, "infiniband.devices"),
]

_INTERFACE = "/sys/class/net/eth1"
ROCE = [
    _fault("no priority is lossless", _tool("mlnx_qos", qos(enabled="0   0   0   0   0   0   0   0")), "roce.lossless"),
    _fault("priorities by VLAN", _tool("mlnx_qos", qos(trust="pcp")), "roce.lossless"),
    _fault("congestion marks are not answered", _file(f"{_INTERFACE}/ecn/roce_np/enable/3", 0), "roce.congestion"),
    _fault("a small MTU of the interface", _file(f"{_INTERFACE}/mtu", 1500), "roce.mtu"),
]
