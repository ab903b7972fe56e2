"""Cards on PCIe, and network cards with RDMA, InfiniBand or RoCE: there, up, as fast as the others, without errors;
and what makes Ethernet lossless enough for RDMA, where each setting that is missing is silent: traffic flows, slowly.

From sysfs, and from the vendors' tools for what sysfs does not have. `ibstat` is not used: it prints nothing and exits
with 0 where there is no device.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from glmforge_ops.health.checks.check import (
    Context,
    Facts,
    Outcome,
    alike,
    compare,
    failed,
    held,
    rule,
    skipped,
    together,
)
from glmforge_ops.health.checks.node import at, names_in, read_number, read_text, run

_PCI, _IB = "/sys/bus/pci/devices", "/sys/class/infiniband"
_ERRORS = ("symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors",
           "local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_xmit_discards")  # fmt: skip
_LAYER = {"infiniband": "InfiniBand", "roce": "Ethernet"}
_CABLE = "check the cable and its transceiver, then the port of the switch"


def pcie(cluster: Facts) -> dict[str, Any]:
    """Links of GPUs, network cards with RDMA and NVMe disks; a slot may allow less than the card."""
    found = []
    for address in names_in(_PCI):
        path = f"{_PCI}/{address}"
        kind, width = read_text(f"{path}/class") or "", read_number(f"{path}/max_link_width")
        is_gpu = kind.startswith("0x03") and read_text(f"{path}/vendor") == "0x10de"
        is_card = kind.startswith("0x02") and bool(names_in(f"{path}/infiniband"))
        if not width or not (is_gpu or is_card or kind.startswith("0x0108")):  # a virtual function has no link
            continue
        slot = read_number(os.path.dirname(os.path.realpath(at(path))).removeprefix(at("")) + "/max_link_speed")
        now, most = read_number(f"{path}/current_link_speed"), read_number(f"{path}/max_link_speed")
        found.append({
            "name": f"{'GPU' if is_gpu else 'NIC' if is_card else 'NVMe'} {address}",
            "width": read_number(f"{path}/current_link_width"), "width_max": width,
            "speed": None if now is None else min(now, slot or now), "speed_max": most,
        })  # fmt: skip
    return {"cards": found}


def ports(cluster: Facts) -> dict[str, Any]:
    """Every port of the cluster's devices, or of all; counters of errors are read twice, a second apart."""
    wanted = cluster["infiniband"]
    names = [name for name in names_in(_IB) if not wanted or name in wanted]
    places = [(name, port) for name in names for port in names_in(f"{_IB}/{name}/ports")]
    before = [_counters(*place) for place in places]
    if places:
        time.sleep(1.0)
    found = [_port(*place, counters) for place, counters in zip(places, before, strict=True)]
    # Either lets a card read a GPU's memory: NVIDIA's module, or DMA buffers of the kernel with the open driver.
    direct = bool(names_in("/sys/module/nvidia_peermem")) or "Open Kernel" in (
        read_text("/proc/driver/nvidia/version") or ""
    )
    return {"ports": found, "missing": [name for name in wanted if name not in names], "gpu_direct": direct}


def _port(name: str, port: str, before: dict[str, float]) -> dict[str, Any]:
    path, here = f"{_IB}/{name}", f"{_IB}/{name}/ports/{port}"
    after, layer = _counters(name, port), read_text(f"{here}/link_layer")
    mtu = re.search(r"active_mtu:\s*(\d+)", run("ibv_devinfo", "-d", name) or "")
    words = [(read_text(f"{here}/{file}") or "").rpartition(": ")[2] for file in ("state", "phys_state")]  # "4: ACTIVE"
    return {
        "device": name, "port": port, "layer": layer, "state": " ".join(words),
        "model": read_text(f"{path}/board_id") or read_text(f"{path}/hca_type") or "?",
        "rate": read_number(f"{here}/rate"),  # "400 Gb/sec (4X NDR)"
        "managed": layer == "Ethernet" or int(read_text(f"{here}/sm_lid") or "0", 16) > 0,
        "growing": ", ".join(error for error in after if after[error] > before.get(error, after[error])) or "none",
        "mtu": int(mtu[1]) if mtu else None,
        **(_ethernet(name) if layer == "Ethernet" else {}),
    }  # fmt: skip


def _counters(name: str, port: str) -> dict[str, float]:
    found = {error: read_number(f"{_IB}/{name}/ports/{port}/counters/{error}") for error in _ERRORS}
    return {error: value for error, value in found.items() if value is not None}


def _ethernet(name: str) -> dict[str, Any]:
    interface = next(iter(names_in(f"{_IB}/{name}/device/net")), "?")
    qos, net = run("mlnx_qos", "-i", interface) or "", f"/sys/class/net/{interface}"
    enabled = re.search(r"^\s*enabled\s+([01](?:\s+[01]){7})\s*$", qos, re.MULTILINE)
    trust = re.search(r"trust state:\s*(\w+)", qos, re.IGNORECASE)
    lossless = [str(at) for at, flag in enumerate(enabled[1].split()) if flag == "1"] if enabled else []
    priority = lossless[0] if lossless else "3"
    marks = [read_text(f"{net}/ecn/roce_{side}/enable/{priority}") for side in ("np", "rp")]  # answered, obeyed
    pfc = "none" if not lossless else "by " + (trust[1].lower() if trust else "?")
    return {
        "interface": interface, "priority": priority, "lossless": pfc if enabled else None,
        "congestion": None if None in marks else "on" if marks == ["1", "1"] else "off",
        "interface_mtu": read_number(f"{net}/mtu"),
    }  # fmt: skip


def _used(facts: Facts, context: Context) -> dict[str, Facts]:
    """Ports that training uses: of the cluster's network; where it names none, of InfiniBand before Ethernet."""
    network, layers = context.cluster.network or "", {port["layer"] for port in facts["ports"]}
    layer = _LAYER.get(network, "InfiniBand" if "InfiniBand" in layers else "Ethernet")
    return {f"{port['device']}/{port['port']}": port for port in facts["ports"]
            if port["layer"] == layer and network != "tcp"}  # fmt: skip


def _of_roce(facts: Facts, context: Context) -> dict[str, Facts]:
    return {name: port for name, port in _used(facts, context).items() if port["layer"] == "Ethernet"}


def devices(facts: Facts, context: Context) -> Outcome:
    """Those that the cluster names, or at least one if its network needs one."""
    named, network = ", ".join(context.cluster.infiniband), context.cluster.network
    fix = "look at 'lspci | grep -i mellanox', then at the driver: 'modprobe mlx5_ib'"
    used = _used(facts, context)
    if facts["missing"] or (not used and network in _LAYER):
        value = f"{', '.join(facts['missing'])} not there" if facts["missing"] else "none"
        return failed(value, named or f"a device, since the network is {network}", fix)
    return held(True, f"{len(used)} ports", named, fix) if used else skipped("no such device was found")


def _rates(facts: Facts, context: Context) -> Any:
    """By port: model and Gbit/s. A port that is down is another check's."""
    up = {name: port for name, port in _used(facts, context).items() if port["state"].startswith("ACTIVE")}
    return {name: (f"{port['model']}", float(port["rate"])) for name, port in up.items()} or None


def rate(values: Any, context: Context) -> dict[str, Outcome]:
    """Every port as fast as most ports of its model, on all nodes; and not below the user's own limit."""
    of_model: dict[str, list[float]] = {}
    for model, speed in (port for found in values.values() for port in found.values()):
        of_model.setdefault(model, []).append(speed)

    def judge_port(model: str, speed: float) -> Outcome:
        rates, own = of_model[model], context.thresholds.find("infiniband-rate", model)
        least = max(max(rates, key=lambda each: (rates.count(each), each)), own.value if own is not None else 0.0)
        return held(speed >= least, f"{speed:g} Gbit/s", f"{least:g} Gbit/s, as other ports of {model}", _CABLE)

    return {host: together({name: judge_port(*port) for name, port in found.items()}, "no port is up")
            for host, found in values.items()}  # fmt: skip


def _count(facts: Facts, context: Context) -> str | None:
    return f"{len(_used(facts, context))} ports" if facts["ports"] else None


def _direct(facts: Facts, context: Context) -> str | None:
    is_used = context.cluster.gpus_per_node and _used(facts, context)
    return ("yes" if facts["gpu_direct"] else "no") if is_used else None


# fmt: off
_CARD: dict[str, Any] = {"each": lambda facts, _: {card["name"]: card for card in facts["cards"]},
                         "none": "no GPU, network card or NVMe disk was found on PCIe"}
_PORT: dict[str, Any] = {"each": _used, "none": "no such device was found"}
_ROCE: dict[str, Any] = {"each": _of_roce, "none": "no device with RoCE is used"}
rule("pcie.width", "quick", pcie, "lanes of PCIe links", "width", want=lambda card, _: card["width_max"], bad=failed,
     fix="power the node off and reseat the card; if it stays, change the slot, the riser or the card", **_CARD)
rule("pcie.speed", "quick", pcie, "GT/s of PCIe links", "speed", want=lambda card, _: card["speed_max"],
     fix="look again while it works; if it stays, reseat the card and look at its slot's setting in the BIOS", **_CARD)
rule("infiniband.devices", "quick", ports, "network cards with RDMA", devices)
compare("infiniband.rate", "quick", ports, "links as fast as the others", _rates, rate, "no port is up", dict)
alike("infiniband.count", "quick", ports, "as many ports on all nodes", _count,
      "the others have {expected}: look at 'lspci', then at the kernel's log for mlx5", "no device was found")
rule("infiniband.state", "quick", ports, "links that are up", "state", want="ACTIVE LinkUp", bad=failed,
     fix=_CABLE + "; INIT is a port that no subnet manager has configured", **_PORT)
rule("infiniband.subnet-manager", "standard", ports, "a subnet manager", "managed", want=True, bad=failed,
     fix="start opensm on one node, or the subnet manager of a switch; 'sminfo' shows it", **_PORT)
rule("infiniband.errors", "quick", ports, "errors on links that grow within a second", "growing", want="none",
     bad=failed, fix=_CABLE, **_PORT)
rule("infiniband.mtu", "standard", ports, "MTU of RDMA", "mtu", least="rdma-mtu", absent="ibv_devinfo shows no MTU",
     fix="raise it in the subnet manager's partitions, or for RoCE that of the interface and the switch", **_PORT)
rule("infiniband.gpu-direct", "standard", ports, "cards reach GPUs' memory", _direct, want="yes",
     fix="'modprobe nvidia-peermem', and have it loaded at boot", absent="there are no GPUs, or no card with RDMA")
rule("roce.lossless", "standard", ports, "priority flow control (PFC), chosen by DSCP", "lossless", want="by dscp",
     fix="'mlnx_qos -i {interface} --trust dscp --pfc 0,0,0,1,0,0,0,0', as the switches have it", bad=failed,
     absent="mlnx_qos is not there", **_ROCE)
rule("roce.congestion", "standard", ports, "congestion marks (ECN) are answered and obeyed", "congestion", want="on",
     fix="'echo 1 > /sys/class/net/{interface}/ecn/roce_np/enable/{priority}', and roce_rp", **_ROCE)
rule("roce.mtu", "standard", ports, "MTU of interfaces", "interface_mtu", least="roce-interface-mtu",
     fix="'ip link set {interface} mtu 9000', and the same on the switches", **_ROCE)
# fmt: on
