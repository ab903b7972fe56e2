"""Links of GPUs, network cards and NVMe disks to the machine, from sysfs."""

from __future__ import annotations

import os

from glmforge_ops.health.checks.probes.reading import at, names_in, read_number, read_text

_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"


def gather(cluster: dict) -> dict:
    nodes = [name for name in names_in("/sys/devices/system/node") if name[4:].isdigit() and name.startswith("node")]
    devices = [_device(address) for address in names_in(_DEVICES)]
    return {"numa_nodes": len(nodes), "devices": [device for device in devices if device is not None]}


def _device(address: str) -> dict | None:
    path = f"{_DEVICES}/{address}"
    kind = _kind(path)
    width = read_number(f"{path}/max_link_width")
    if kind is None or not width:  # a virtual function has no link of its own
        return None
    # A slot may allow less than the card: the link's other end is the bridge above the card.
    bridge = os.path.dirname(os.path.realpath(at(path)))
    return {
        "address": address,
        "kind": kind,
        "width": read_number(f"{path}/current_link_width"),
        "width_max": width,
        "speed": read_number(f"{path}/current_link_speed"),
        "speed_max": read_number(f"{path}/max_link_speed"),
        "slot_speed": _above(bridge, "max_link_speed"),
        "numa_node": read_number(f"{path}/numa_node"),
        "fatal": _errors(path, "fatal"),
        "nonfatal": _errors(path, "nonfatal"),
    }


def _kind(path: str) -> str | None:
    device_class = read_text(f"{path}/class") or ""
    if device_class.startswith("0x03") and read_text(f"{path}/vendor") == _NVIDIA:
        return "GPU"
    if device_class.startswith("0x02") and names_in(f"{path}/infiniband"):
        return "NIC"
    return "NVMe" if device_class.startswith("0x0108") else None


def _above(bridge: str, name: str) -> float | None:
    root = at("")
    return read_number(f"{bridge[len(root) :]}/{name}") if bridge.startswith(root) else None


def _errors(path: str, severity: str) -> float | None:
    """Errors since boot by Advanced Error Reporting, whose last line is the total."""
    text = read_text(f"{path}/aer_dev_{severity}")
    last = text.splitlines()[-1].split() if text else []
    return float(last[-1]) if len(last) == 2 and last[0].startswith("TOTAL") and last[1].isdigit() else None
