"""Cards on PCIe, and network cards with RDMA, InfiniBand or RoCE: there, up, as fast as the others, without errors;
and what makes Ethernet lossless enough for RDMA, where each setting that is missing is silent: traffic flows, slowly.

From sysfs, and from the makers' tools for what the kernel does not tell. `ibstat` prints nothing and exits with 0 where
there is no device, so it is not asked.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from typing import Any

from glmforge_ops.health.checks.check import (
    Context,
    Facts,
    Outcome,
    Session,
    act,
    alike,
    compare,
    failed,
    judge,
    judge_each,
    name_of,
    passed,
    rule,
    skipped,
    together,
)  # fmt: skip
from glmforge_ops.health.checks.node import at, first_number, names_in, read_number, read_text, run

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
        errors = [re.search(r"^TOTAL\S* (\d+)$", read_text(f"{path}/aer_dev_{name}") or "", re.MULTILINE)
                  for name in ("fatal", "nonfatal")]  # fmt: skip
        found.append({
            "name": f"{'GPU' if is_gpu else 'NIC' if is_card else 'NVMe'} {address}",
            "width": read_number(f"{path}/current_link_width"), "width_max": width,
            "speed": None if now is None else min(now, slot or now), "speed_max": most,
            "errors": sum(int(total[1]) for total in errors if total) if any(errors) else None,
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
        "firmware": read_text(f"{path}/fw_ver") or "?",
        "rate": read_number(f"{here}/rate"),  # "400 Gb/sec (4X NDR)"
        "managed": layer == "Ethernet" or int(read_text(f"{here}/sm_lid") or "0", 16) > 0,
        "link_downed": read_number(f"{here}/counters/link_downed"),
        "growing": ", ".join(error for error in after if after[error] > before.get(error, after[error])) or "none",
        "mtu": int(mtu[1]) if mtu else None,
        **(_ethernet(name, port) if layer == "Ethernet" else {}),
    }  # fmt: skip


def _counters(name: str, port: str) -> dict[str, float]:
    found = {error: read_number(f"{_IB}/{name}/ports/{port}/counters/{error}") for error in _ERRORS}
    return {error: value for error, value in found.items() if value is not None}


def _ethernet(name: str, port: str) -> dict[str, Any]:
    path, gids = f"{_IB}/{name}", f"{_IB}/{name}/ports/{port}"
    interface = next(iter(names_in(f"{path}/device/net")), "?")
    qos, net = run("mlnx_qos", "-i", interface) or "", f"/sys/class/net/{interface}"
    enabled = re.search(r"^\s*enabled\s+([01](?:\s+[01]){7})\s*$", qos, re.MULTILINE)
    trust = re.search(r"trust state:\s*(\w+)", qos, re.IGNORECASE)
    lossless = [str(at) for at, flag in enumerate(enabled[1].split()) if flag == "1"] if enabled else []
    priority = lossless[0] if lossless else "3"
    marks = [read_text(f"{net}/ecn/roce_{side}/enable/{priority}") for side in ("np", "rp")]  # answered, obeyed
    tclass = read_text(f"{path}/tc/{port}/traffic_class") or run("cma_roce_tos", "-d", name, "-p", port)
    pfc = "none" if not lossless else "by " + (trust[1].lower() if trust else "?")
    return {
        "interface": interface, "priority": priority, "lossless": pfc if enabled else None,
        "congestion": None if None in marks else "on" if marks == ["1", "1"] else "off",
        "tos": first_number((tclass or "").rpartition("=")[2]),  # "Global tclass=106"
        "gids": sum(read_text(f"{gids}/gid_attrs/types/{index}") == "RoCE v2"
                    and bool((read_text(f"{gids}/gids/{index}") or "").strip("0:")) for index in range(64)),
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


@judge("infiniband.devices", "quick", ports, "network cards with RDMA")
def devices(facts: Facts, context: Context) -> Outcome:
    """Those that the cluster names, or at least one if its network needs one."""
    named, network = ", ".join(context.cluster.infiniband), context.cluster.network
    fix = "look at 'lspci | grep -i mellanox', then at the driver: 'modprobe mlx5_ib'"
    used = _used(facts, context)
    if facts["missing"] or (not used and network in _LAYER):
        value = f"{', '.join(facts['missing'])} not there" if facts["missing"] else "none"
        return failed(value, named or f"a device, since the network is {network}", fix)
    return passed(f"{len(used)} ports", named or "at least one") if used else skipped("no such device was found")


def _rates(facts: Facts, context: Context) -> Any:
    """By port: model and Gbit/s. A port that is down is another check's."""
    up = {name: port for name, port in _used(facts, context).items() if port["state"].startswith("ACTIVE")}
    return {name: (f"{port['model']}", float(port["rate"])) for name, port in up.items()} or None


@compare("infiniband.rate", "quick", ports, "links as fast as the others", _rates, "no port is up", dict)
def rate(values: Any, context: Context) -> dict[str, Outcome]:
    """Every port as fast as most ports of its model, on all nodes; and not below the user's own limit."""
    of_model: dict[str, list[float]] = {}
    for model, speed in (port for found in values.values() for port in found.values()):
        of_model.setdefault(model, []).append(speed)

    def judge_port(model: str, speed: float) -> Outcome:
        rates, own = of_model[model], context.find("infiniband-rate", model)
        least = max(max(rates, key=lambda each: (rates.count(each), each)), own.value if own is not None else 0.0)
        threshold, value = f"{least:g} Gbit/s, as other ports of {model}", f"{speed:g} Gbit/s"
        return passed(value, threshold) if speed >= least else failed(value, threshold, _CABLE)

    return {host: together({name: judge_port(*port) for name, port in found.items()}, "no port is up")
            for host, found in values.items()}  # fmt: skip


def _count(facts: Facts, context: Context) -> str | None:
    return f"{len(_used(facts, context))} ports" if facts["ports"] else None


def _firmware(facts: Facts, context: Context) -> str | None:
    return ", ".join(sorted({f"{port['model']} {port['firmware']}" for port in _used(facts, context).values()})) or None


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
rule("pcie.errors", "quick", pcie, "uncorrected errors on PCIe since boot", "errors", want=0,
     fix="reseat the card and its riser; if errors come again, have it replaced", **_CARD)
alike("infiniband.count", "quick", ports, "as many ports on all nodes", _count,
      "the others have {expected}: look at 'lspci', then at the kernel's log for mlx5", "no device was found")
alike("infiniband.firmware", "standard", ports, "the same firmware on all nodes", _firmware,
      "'mlxfwmanager' or 'flint' brings it to the others' ({expected}); then reboot", "no device was found")
rule("infiniband.state", "quick", ports, "links that are up", "state", want="ACTIVE LinkUp", bad=failed,
     fix=_CABLE + "; INIT is a port that no subnet manager has configured", **_PORT)
rule("infiniband.subnet-manager", "standard", ports, "a subnet manager", "managed", want=True, bad=failed,
     fix="start opensm on one node, or the subnet manager of a switch; 'sminfo' shows it", **_PORT)
rule("infiniband.errors", "quick", ports, "errors on links that grow within a second", "growing", want="none",
     bad=failed, fix=_CABLE, **_PORT)
rule("infiniband.link-downed", "quick", ports, "links that were lost since boot", "link_downed", most="link-downed",
     fix=_CABLE, **_PORT)
rule("infiniband.mtu", "standard", ports, "MTU of RDMA", "mtu", least="rdma-mtu", absent="ibv_devinfo tells no MTU",
     fix="raise it in the subnet manager's partitions, or for RoCE that of the interface and the switch", **_PORT)
rule("infiniband.gpu-direct", "standard", ports, "cards reach GPUs' memory", _direct, want="yes",
     fix="'modprobe nvidia-peermem', and have it loaded at boot", absent="there are no GPUs, or no card with RDMA")
rule("roce.gids", "standard", ports, "addresses of RoCE v2", "gids", least="roce-gids", bad=failed,
     fix="give {interface} an IP address; 'show_gids' lists them", **_ROCE)
rule("roce.lossless", "standard", ports, "priority flow control (PFC), chosen by DSCP", "lossless", want="by dscp",
     fix="'mlnx_qos -i {interface} --trust dscp --pfc 0,0,0,1,0,0,0,0', as the switches have it", bad=failed,
     absent="mlnx_qos is not there", **_ROCE)
rule("roce.congestion", "standard", ports, "congestion marks (ECN) are answered and obeyed", "congestion", want="on",
     fix="'echo 1 > /sys/class/net/{interface}/ecn/roce_np/enable/{priority}', and roce_rp", **_ROCE)
rule("roce.traffic-class", "standard", ports, "type of service of RDMA's packets", "tos",
     want=lambda port, context: context.limit("roce-tos"), absent="cma_roce_tos is not there",
     fix="'cma_roce_tos -d {device} -t 106', or NCCL_IB_TC=106 in the environment of jobs", **_ROCE)
rule("roce.mtu", "standard", ports, "MTU of interfaces", "interface_mtu", least="roce-interface-mtu",
     fix="'ip link set {interface} mtu 9000', and the same on the switches", **_ROCE)
# fmt: on


@act("infiniband.latency", "thorough", ports, "latency of RDMA to the next node, by ib_write_lat")
def latency(session: Session) -> dict[str, Outcome]:
    """In a ring, in two rounds (three for an odd number of nodes) of pairs that do not disturb each other."""
    active: dict[str, Facts] = {}

    def find_port(host: str, facts: Facts) -> Outcome:
        used = [port for port in _used(facts, session.context).values() if port["state"].startswith("ACTIVE")]
        if used:
            active[host] = used[0]
        return skipped("takes two nodes with an active port of RDMA")

    outcomes = judge_each(session.known(ports), find_port)
    hosts = list(active) if len(active) > 1 else []
    pairs = [(host, hosts[(index + 1) % len(hosts)]) for index, host in enumerate(hosts)]
    last = [pairs.pop()] if len(pairs) % 2 else []
    for round_ in filter(None, (pairs[::2], pairs[1::2], last)):
        scripts: dict[str, str] = {}
        for host, other in round_:
            scripts[other] = _script(active[other], "")  # started first: it waits
            scripts[host] = _script(active[host], name_of(other))
        answers = session.shell(scripts, 50.0)
        for host, other in round_:
            outcomes[host] = _judge_latency(answers[host], answers[other], f"{active[host]['layer']}", session.context)
    return outcomes


def _script(port: Facts, other: str) -> str:
    device, number = shlex.quote(f"{port['device']}"), shlex.quote(f"{port['port']}")
    tool = f"timeout 30 ib_write_lat -F -d {device} -i {number} -p 18515 -s 8 -n 1000 {shlex.quote(other)}"
    tries = f"for try in 1 2 3 4 5; do {tool} && exit 0; sleep 1; done; exit 1"
    return "command -v ib_write_lat >/dev/null || exit 127; " + (tries if other else tool.removesuffix("''"))


def _judge_latency(answer: Any, other: Any, layer: str, context: Context) -> Outcome:
    row = context.find("rdma-latency", layer)
    if 127 in (answer.status, other.status) or row is None:
        return skipped("ib_write_lat is not there", "install perftest")
    threshold = f"at most {row.value:g} us"
    # Bytes, iterations, least, most, typical.
    found = re.search(rb"^\s*8\s+\d+\s+[\d.]+\s+[\d.]+\s+(\d+(?:\.\d+)?)\s", answer.stdout, re.MULTILINE)
    if not answer.is_done or found is None:
        fix = "run 'ib_write_lat' manually on both; is port 18515 open between them?"
        return failed(f"no answer from {other.host}: {answer.reason or other.reason}", threshold, fix)
    value, fix = f"{float(found[1]):g} us to {other.host}", "look at the CPU's frequency, the cable's errors, a detour"
    return passed(value, threshold) if float(found[1]) <= row.value else failed(value, threshold, fix)
