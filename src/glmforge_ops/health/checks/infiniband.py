"""Network cards with RDMA: there, up, as fast as the others, of one firmware, and without errors."""

from collections.abc import Callable, Mapping

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.equal import compare_facts
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, together, warning

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"

_CABLE = "check the cable and its transceiver, then the port of the switch"
_LAYER = {"infiniband": INFINIBAND, "roce": ETHERNET}


def ports_of(facts: Facts, context: Context) -> list[Facts]:
    """Ports that training uses: of the cluster's network; where it names none, of InfiniBand before Ethernet."""
    if context.cluster.network == "tcp":
        return []
    ports = facts.each("ports")
    layers = {port.text("layer") for port in ports}
    layer = _LAYER.get(context.cluster.network or "", INFINIBAND if INFINIBAND in layers else ETHERNET)
    return [port for port in ports if port.text("layer") == layer]


def of_each_port(judge: Callable[[Facts, Context], Outcome], well: str) -> Callable[[Facts, Context], Outcome]:
    """A judge of a node from one of a port; `well` may hold {count}."""

    def judge_all(facts: Facts, context: Context) -> Outcome:
        ports = ports_of(facts, context)
        if not ports:
            return skipped("the network is TCP" if context.cluster.network == "tcp" else "no device was found")
        outcomes = {_name(port): judge(port, context) for port in ports}
        return together(outcomes, well.format(count=len(ports)))

    return judge_all


def devices(facts: Facts, context: Context) -> Outcome:
    """Those that the cluster names, or at least one if its network needs one."""
    named, missing = context.cluster.infiniband, facts.texts("missing")
    network = context.cluster.network
    mend = "look at 'lspci | grep -i mellanox', then at the driver: 'modprobe mlx5_ib'"
    if missing:
        return failed(f"{', '.join(missing)} not there", f"{', '.join(named)}", mend)
    ports = ports_of(facts, context)
    if not ports:
        if network in _LAYER:
            return failed("none", f"a device, since the network is {network}", mend)
        return skipped("the network is TCP" if network == "tcp" else "no device was found")
    return passed(f"{len(ports)} ports", ", ".join(named) or "at least one")


def device_count(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """As many ports on each node as on the others."""
    mend = "the others have {expected}: look at 'lspci', then at the kernel's log for mlx5"
    return compare_facts(nodes, lambda facts: _count(facts, context), "ports", mend, absent="no device was found")


def _count(facts: Facts, context: Context) -> str | None:
    number = len(ports_of(facts, context))
    return f"{number} ports" if number or facts.each("ports") else None


def state(port: Facts, context: Context) -> Outcome:
    """The link is up, and the port is ready for traffic."""
    logical, physical = port.text("state"), port.text("physical")
    if logical is None:
        return skipped("the state is not told")
    threshold = "ACTIVE, LinkUp"
    if physical is not None and physical != "LinkUp":
        return failed(f"{physical}", threshold, _CABLE)
    if logical == "INIT":
        return failed("INIT: the link is up, nobody configured it", threshold, "start or look at the subnet manager")
    return passed("ACTIVE", threshold) if logical == "ACTIVE" else failed(logical, threshold, _CABLE)


def subnet_manager(port: Facts, context: Context) -> Outcome:
    """InfiniBand only: somebody gives addresses."""
    lid = port.count("sm_lid")
    if port.text("layer") != INFINIBAND:
        return skipped("RoCE has none")
    if port.text("physical") != "LinkUp":
        return skipped("the link is down")
    mend = "start opensm on one node, or the subnet manager of a switch; 'sminfo' shows it"
    return passed(f"LID {lid}", "one that answers") if lid else failed("none", "one that answers", mend)


def rate(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Every port as fast as most ports of its model, on all nodes; and not below the user's own limit."""
    rates: dict[str, dict[str, float]] = {}
    ports: dict[str, dict[str, tuple[str, float, int | None]]] = {}
    outcomes: dict[str, Outcome] = {}
    for host, facts in nodes.items():
        try:
            ports[host] = _rates(facts, context)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "look at what its probe answers")
    for host, of_host in ports.items():
        for name, (model, found, _) in of_host.items():
            rates.setdefault(model, {})[f"{host} {name}"] = found
    for host, of_host in ports.items():
        judged = {name: _rate_of(*port, rates[port[0]], context) for name, port in of_host.items()}
        fastest = max((port[1] for port in of_host.values()), default=0)
        outcomes[host] = together(judged, f"{fastest:g} Gbit/s") if judged else skipped("no port is up")
    return outcomes


def _rates(facts: Facts, context: Context) -> dict[str, tuple[str, float, int | None]]:
    """By port: model, Gbit/s, lanes. A port that is down is another check's."""
    found = {}
    for port in ports_of(facts, context):
        speed = port.number("rate", 0)
        if speed is not None and port.text("state") == "ACTIVE":
            found[_name(port)] = (port.text("model") or "?", speed, port.count("width"))
    return found


def _rate_of(model: str, found: float, lanes: int | None, rates: Mapping[str, float], context: Context) -> Outcome:
    usual = max(set(rates.values()), key=lambda speed: (sum(each == speed for each in rates.values()), speed))
    own = context.thresholds.find("infiniband-rate", model)
    least = max(usual, own.value if own is not None else 0)
    threshold = f"{least:g} Gbit/s, as other ports of {model}"
    value = f"{found:g} Gbit/s" + (f" on {lanes} lanes" if lanes is not None and lanes < 4 else "")
    return passed(value, threshold) if found >= least else failed(value, threshold, _CABLE)


def firmware(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """The same of each model on all nodes."""
    mend = "'mlxfwmanager' or 'flint' brings it to the others' ({expected}); then reboot"
    return compare_facts(nodes, lambda facts: _firmware(facts, context), "firmware", mend, absent="no device was found")


def _firmware(facts: Facts, context: Context) -> str | None:
    found = {(port.text("model") or "?", port.text("firmware") or "?") for port in ports_of(facts, context)}
    return ", ".join(f"{model} {version}" for model, version in sorted(found)) or None


def errors(port: Facts, context: Context) -> Outcome:
    """No counter of errors that grows, and a link that was not lost again and again."""
    growing, downed = port.texts("growing"), port.count("link_downed")
    limit = context.thresholds.get("link-downed")
    if growing:
        return failed(f"{', '.join(growing)} grow", "no errors within a second", _CABLE)
    if downed is not None and downed > limit.value:
        return warning(f"lost {downed} times since boot", f"at most {limit.value:g} times", _CABLE)
    return skipped("counters are not told") if downed is None else passed("none", "no errors within a second")


def mtu(port: Facts, context: Context) -> Outcome:
    """The largest that RDMA has."""
    found, least = port.count("mtu"), context.thresholds.get("rdma-mtu").value
    if found is None:
        return skipped("ibv_devinfo is not there, or tells no MTU", "install ibverbs-utils")
    threshold = f"at least {least:g} bytes"
    if found >= least:
        return passed(f"{found} bytes", threshold)
    where = "the subnet manager's partitions" if port.text("layer") == INFINIBAND else "the interface (and the switch)"
    return warning(f"{found} bytes", threshold, f"raise the MTU of {where}")


def gpu_direct(facts: Facts, context: Context) -> Outcome:
    """Cards can read GPUs' memory; otherwise everything goes through the CPU's."""
    if context.cluster.gpus_per_node == 0 or not ports_of(facts, context):
        return skipped("there are no GPUs, or no network card with RDMA")
    threshold = "nvidia_peermem, or the driver's open kernel module"
    mend = "'modprobe nvidia-peermem', and have it loaded at boot"
    return passed("there", threshold) if facts.flag("gpu_direct") else warning("neither is loaded", threshold, mend)


def _name(port: Facts) -> str:
    return f"{port.text('device')}/{port.text('port')}"


CHECKS = (
    Check("infiniband.devices", "network cards with RDMA", Level.QUICK, "infiniband", judge=devices),
    Check("infiniband.count", "as many on all nodes", Level.QUICK, "infiniband", compare=device_count),
    Check(
        "infiniband.state", "links that are up", Level.QUICK, "infiniband", judge=of_each_port(state, "{count} ACTIVE")
    ),
    Check("infiniband.rate", "links as fast as the others", Level.QUICK, "infiniband", compare=rate),
    Check(
        "infiniband.errors",
        "errors on links",
        Level.QUICK,
        "infiniband",
        judge=of_each_port(errors, "none on {count} ports"),
    ),
    Check(
        "infiniband.subnet-manager",
        "a subnet manager",
        Level.STANDARD,
        "infiniband",
        judge=of_each_port(subnet_manager, "answers on {count} ports"),
    ),
    Check("infiniband.firmware", "the same firmware on all nodes", Level.STANDARD, "infiniband", compare=firmware),
    Check("infiniband.mtu", "MTU of RDMA", Level.STANDARD, "infiniband", judge=of_each_port(mtu, "{count} ports")),
    Check("infiniband.gpu-direct", "cards reach GPUs' memory", Level.STANDARD, "infiniband", judge=gpu_direct),
)
