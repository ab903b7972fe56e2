"""A healthy node as a directory: two H100, two network cards with InfiniBand or RoCE, two sockets.

Smaller than a real one, so that a test that asks it a hundred times is quick; every value is one that such a machine
was seen to have.
"""

import json
from pathlib import Path

from helpers.fake_node import FakeNode

MODEL = "NVIDIA H100 80GB HBM3"
PYTHON = {
    "python": "3.11.7",
    "cuda": "12.8",
    "packages": {
        "torch": "2.11.0+cu128",
        "glmforge": "0.1.0",
        "numpy": "2.4.6",
        "nvidia-nccl-cu12": "2.28.9",
        "nvidia-nccl-cu13": None,
    },
}
MEMINFO = """MemTotal: {total} kB
MemFree: 900000000 kB
MemAvailable: {available} kB"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             {processes}              {processes}              processes
Max open files            {files}              1048576              files
Max locked memory         {locked}            unlimited            bytes"""
CHRONY = """Reference ID    : 0A000001 (10.0.0.1)
Stratum         : 3
Leap status     : {leap}"""
QOS = """DCBX mode: OS controlled
Priority trust state: {trust}
PFC configuration:
	priority    0   1   2   3   4   5   6   7
	enabled     {enabled}
	buffer      0   0   0   1   0   0   0   0"""


def meminfo(total: int = 1056000000, available: int = 1010000000) -> str:
    return MEMINFO.format(total=total, available=available)


def limits(processes: int = 4123456, files: int = 1048576, locked: object = "unlimited") -> str:
    return LIMITS.format(processes=processes, files=files, locked=locked)


def chrony(leap: str = "Normal") -> str:
    return CHRONY.format(leap=leap)


def qos(trust: str = "dscp", enabled: str = "0   0   0   1   0   0   0   0") -> str:
    return QOS.format(trust=trust, enabled=enabled)


def topology(between: str = "NV18", far: str = "PIX") -> str:
    """`nvidia-smi topo -m`; `far` is the way from the second GPU to its own card."""
    head = "\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    return "\n".join(
        [
            f"\t{head}",
            f"GPU0\t X \t{between}\tPIX\tSYS\t0-1\t0\t\tN/A",
            f"GPU1\t{between}\t X \tSYS\t{far}\t2-3\t1\t\tN/A",
            "NIC0\tPIX\tSYS\t X \tSYS",
            f"NIC1\tSYS\t{far}\tSYS\t X ",
            "",
            "Legend:",
            "  X    = Self",
        ]
    )


def healthy(root: Path, library: Path, layer: str = "InfiniBand") -> FakeNode:
    node = FakeNode(root, library)
    _gpus(node)
    for index in range(2):
        _card(node, index, layer)
    _machine(node)
    _processes(node)
    return node


def _gpus(node: FakeNode) -> None:
    node.gpus = {"gpus": "2", "driver": "570.124.06", "cuda": "12080"}
    values = {
        "name": MODEL,
        "temperature": 31,
        "power_limit": 700000,
        "power_default": 700000,
        "clock_application": 1980,
        "clock_default": 1980,
        "utilization": 0,
        "memory_total": 85520809984,
        "memory_used": 4 << 20,
        "persistence": 1,
        "ecc": 1,
        "ecc_uncorrected": 0,
        "rows_uncorrectable": 0,
        "throttle": 0,
        "links": 18,
    }
    for gpu in range(2):
        node.gpus |= {f"{gpu}.{name}": str(value) for name, value in values.items()}
        node.gpus[f"{gpu}.uuid"] = f"GPU-{gpu}"
        _pci(node, f"0000:{gpu + 1}a:00.0", "0x030200", "0x10de")
    node.tool("nvidia-smi", ("topo -m", topology()))
    node.write("/sys/module/nvidia/version", "570.124.06")
    node.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06")


def _pci(node: FakeNode, address: str, device_class: str, vendor: str) -> None:
    """A card behind a bridge, as the kernel has it: a link into the tree of buses."""
    bridge = f"sys/devices/pci0000:00/{address[:-1]}1"
    here = f"{bridge}/{address}"
    node.write(f"{bridge}/max_link_speed", "32.0 GT/s PCIe")
    values = {
        "class": device_class,
        "vendor": vendor,
        "current_link_width": 16,
        "max_link_width": 16,
        "current_link_speed": "32.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
    }
    for name, value in values.items():
        node.write(f"{here}/{name}", value)
    link = node.root / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(node.root / here)


def _card(node: FakeNode, index: int, layer: str) -> None:
    address, name = f"0000:{index + 1}b:00.0", f"mlx5_{index}"
    _pci(node, address, "0x020700" if layer == "InfiniBand" else "0x020000", "0x15b3")
    device = f"/sys/bus/pci/devices/{address}"
    node.write(f"{device}/infiniband/{name}/node_guid", "0")
    here = f"/sys/class/infiniband/{name}"
    node.write(f"{here}/board_id", "MT_0000000838")
    (node.root / here.lstrip("/") / "device").symlink_to(node.root / device.lstrip("/"))
    is_ethernet = layer == "Ethernet"
    port = {
        "link_layer": layer,
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "sm_lid": "0x0" if is_ethernet else "0x1",
        "counters/symbol_error": 0,
        "counters/port_rcv_errors": 3,
    }
    for key, value in port.items():
        node.write(f"{here}/ports/1/{key}", value)
    node.tool("ibv_devinfo", ("-d", "hca_id: mlx5\n\tport: 1\n\t\tactive_mtu: 4096 (5)"))
    if is_ethernet:
        _ethernet(node, index, here, device)


def _ethernet(node: FakeNode, index: int, here: str, device: str) -> None:
    interface = f"eth{index}"
    node.write(f"{device}/net/{interface}/mtu", 9000)
    net = node.root / "sys/class/net" / interface
    net.parent.mkdir(parents=True, exist_ok=True)
    net.symlink_to(node.root / f"{device}/net/{interface}".lstrip("/"))
    for side in ("np", "rp"):
        for priority in range(8):
            node.write(f"{device}/net/{interface}/ecn/roce_{side}/enable/{priority}", int(priority == 3))
    node.tool("mlnx_qos", ("-i", qos()))


def _machine(node: FakeNode) -> None:
    files = {
        "/sys/devices/system/edac/mc/mc0/ue_count": 0,
        "/proc/sys/kernel/osrelease": "5.15.0-105-generic",
        "/etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"',
        "/proc/uptime": "900000.00 3500000.00",
        "/proc/loadavg": "0.52 0.40 0.33 1/900 4242",
        "/proc/meminfo": meminfo(),
        "/proc/self/limits": limits(),
    }
    for path, text in files.items():
        node.write(path, text)
    node.tool("chronyc", ("tracking", chrony()))
    node.tool("dmesg", ("", "[    0.000000] Linux version 5.15.0-105-generic\n[   12.100000] mlx5_core: ready"))
    node.tool("python3", ("", json.dumps(PYTHON)))


def process(node: FakeNode, pid: int, parent: int, command: str, state: str = "S", environ: str = "") -> None:
    """A process of the node."""
    node.write(f"/proc/{pid}/stat", f"{pid} (a (b) c) {state} {parent} 1 1 0")
    node.write(f"/proc/{pid}/comm", command.split()[0])
    node.write(f"/proc/{pid}/cmdline", command.replace(" ", "\0"))
    node.write(f"/proc/{pid}/environ", environ)


def _processes(node: FakeNode) -> None:
    rank = "RANK=0\0WORLD_SIZE=2"
    process(node, 1, 0, "/sbin/init")
    process(node, 50, 1, "irqbalance")
    process(node, 60, 1, "torchrun train.py")  # started with nohup: nobody but init is above it, and that is right
    process(node, 61, 60, "python train.py", environ=rank)
    process(node, 62, 61, "python loader", environ=rank)
