"""Network cards with RDMA, InfiniBand or RoCE, from sysfs; what the kernel does not tell, from their makers' tools.

`ibstat` is not asked: it prints nothing and ends with 0 where there is no device.
"""

from __future__ import annotations

import re
import time

from glmforge_ops.health.checks.probes.reading import first_number, names_in, read_number, read_text, run

_DEVICES = "/sys/class/infiniband"
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
)
_MAX_GIDS = 64
_GROWTH_S = 1.0


def gather(cluster: dict) -> dict:
    wanted = cluster.get("infiniband") or []
    names = [name for name in names_in(_DEVICES) if not wanted or name in wanted]
    places = [(name, port) for name in names for port in names_in(f"{_DEVICES}/{name}/ports")]
    before = {place: _counters(*place) for place in places}
    if places:
        time.sleep(_GROWTH_S)
    ports = [_port(name, port, before[name, port]) for name, port in places]
    # Either lets a card read a GPU's memory: NVIDIA's module, or DMA buffers of the kernel with the open driver.
    peer = bool(names_in("/sys/module/nvidia_peermem") or names_in("/sys/module/nv_peer_mem"))
    is_open = "Open Kernel Module" in (read_text("/proc/driver/nvidia/version") or "")
    return {"ports": ports, "missing": [name for name in wanted if name not in names], "gpu_direct": peer or is_open}


def _port(name: str, port: str, before: dict) -> dict:
    path = f"{_DEVICES}/{name}"
    here = f"{path}/ports/{port}"
    after = _counters(name, port)
    layer = read_text(f"{here}/link_layer")
    facts = {
        "device": name,
        "port": port,
        "model": read_text(f"{path}/board_id") or read_text(f"{path}/hca_type"),
        "firmware": read_text(f"{path}/fw_ver"),
        "layer": layer,
        "state": _word(read_text(f"{here}/state")),
        "physical": _word(read_text(f"{here}/phys_state")),
        "rate": read_number(f"{here}/rate"),
        "width": _width(read_text(f"{here}/rate")),
        "sm_lid": _lid(read_text(f"{here}/sm_lid")),
        "link_downed": after.get("link_downed"),
        "growing": sorted(error for error in after if error in before and after[error] > before[error]),
        "mtu": _mtu(name),
        "ethernet": None,
    }
    if layer == "Ethernet":
        facts["ethernet"] = _ethernet(name, port)
    return facts


def _ethernet(name: str, port: str) -> dict:
    path = f"{_DEVICES}/{name}"
    interface = next(iter(names_in(f"{path}/device/net")), None)
    qos = run("mlnx_qos", "-i", interface) if interface else None
    enabled = re.search(r"^\s*enabled\s+([01](?:\s+[01]){7})\s*$", qos or "", re.MULTILINE)
    trust = re.search(r"trust state:\s*(\w+)", qos or "", re.IGNORECASE)
    np, rp = (f"/sys/class/net/{interface}/ecn/roce_{side}/enable" for side in ("np", "rp"))
    return {
        "interface": interface,
        "lossless": [i for i, flag in enumerate(enabled.group(1).split()) if flag == "1"] if enabled else None,
        "trust": trust.group(1).lower() if trust else read_text(f"/sys/class/net/{interface}/qos/trust"),
        "ecn_np": _enabled(np),
        "ecn_rp": _enabled(rp),
        "tos": _tos(name, port),
        "roce_v2": _num_v2_gids(f"{path}/ports/{port}"),
        "interface_mtu": read_number(f"/sys/class/net/{interface}/mtu"),
    }


def _counters(name: str, port: str) -> dict:
    path = f"{_DEVICES}/{name}/ports/{port}/counters"
    found = {error: read_number(f"{path}/{error}") for error in _ERRORS}
    return {error: value for error, value in found.items() if value is not None}


def _word(text: str | None) -> str | None:
    """ "4: ACTIVE" is ACTIVE."""
    return text.partition(":")[2].strip() or text if text else None


def _width(rate: str | None) -> int | None:
    """Lanes in "400 Gb/sec (4X NDR)"."""
    found = re.search(r"\((\d+)X", rate or "")
    return int(found.group(1)) if found else None


def _lid(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _mtu(name: str) -> float | None:
    found = re.search(r"active_mtu:\s*(\d+)", run("ibv_devinfo", "-d", name) or "")
    return float(found.group(1)) if found else None


def _tos(name: str, port: str) -> float | None:
    text = read_text(f"{_DEVICES}/{name}/tc/{port}/traffic_class")  # "Global tclass=106"
    if text and "=" in text:
        return first_number(text.partition("=")[2])
    return first_number(run("cma_roce_tos", "-d", name, "-p", port))


def _enabled(path: str) -> list[int] | None:
    """Priorities for which it is on; None if the card does not tell."""
    priorities = [name for name in names_in(path) if name.isdigit()]
    return [int(name) for name in priorities if read_text(f"{path}/{name}") == "1"] if priorities else None


def _num_v2_gids(path: str) -> int:
    count = 0
    for index in range(_MAX_GIDS):
        kind = read_text(f"{path}/gid_attrs/types/{index}")
        gid = read_text(f"{path}/gids/{index}")
        count += kind == "RoCE v2" and bool(gid) and set(gid or "") - set("0:") != set()
    return count
