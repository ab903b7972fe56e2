"""The network of a node: its interface, and the names by which nodes know each other."""

from collections.abc import Mapping
from ipaddress import ip_address

from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.health.checks.action import ask_nodes, judge_each, name_of
from glmforge_ops.health.checks.check import Check, Context, Level, Session
from glmforge_ops.health.checks.equal import compare_values
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_PROBE = "network"
_LIMIT_S = 40.0
_ALL_NAMES = 64
"""Up to so many nodes each must know all others; with more, the first and its neighbours in the list."""


def link(facts: Facts, context: Context) -> Outcome:
    """The interface of cluster.yaml, or that of the route to the others."""
    name = facts.text("interface")
    if name is None:
        return failed("there is no interface but the loopback", "up", "connect it, or give interface in cluster.yaml")
    if not facts.flag("there"):
        return failed(f"{name} is not there", "up", "correct interface in cluster.yaml, or load its driver: ip link")
    if not facts.flag("up"):
        return failed(f"{name} is down", "up", f"ip link set {name} up; look at its cable and its switch port")
    if facts.text("address") is None:
        return failed(f"{name} has no IPv4 address", "an address", "look at DHCP or /etc/network: ip addr")
    speed = facts.number("speed")
    told = f", {speed / 1000:g} Gbit/s" if speed and speed > 0 else ""
    return passed(f"{name} {facts.text('address')}{told}", "up")


def mtu(facts: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Packets that one node sends and another does not take are lost without a word."""
    return _equal(facts, "mtu", "MTU", "ip link set IF mtu {expected}, and in the network's configuration")


def link_speed(facts: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """As the driver says: a worn cable or a wrong port negotiates less."""
    return _equal(facts, "speed", "link speed in Mbit/s", "look at cable, transceiver and switch port: ethtool IF")


def _equal(facts: Mapping[str, Facts], fact: str, what: str, mend: str) -> dict[str, Outcome]:
    values: dict[str, str] = {}
    outcomes: dict[str, Outcome] = {}
    for host, of_host in facts.items():
        try:
            number = of_host.number(fact)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?")
            continue
        if number is None or number <= 0:
            outcomes[host] = skipped("the driver does not say" if of_host.flag("there") else "see network.link")
        else:
            values[host] = f"{number:g}"
    return outcomes | compare_values(values, what, mend)


def errors(facts: Facts, context: Context) -> Outcome:
    """Since the machine started."""
    if not facts.flag("there"):
        return skipped("see network.link")
    counts = {name: facts.number(name) or 0 for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")}
    packets = (facts.number("rx_packets") or 0) + (facts.number("tx_packets") or 0)
    most = context.thresholds.get("network-errors").value
    broken = counts["rx_errors"] + counts["tx_errors"]
    share = 1e6 * broken / packets if packets else 0.0
    value = f"{broken:,.0f} errors, {counts['rx_dropped'] + counts['tx_dropped']:,.0f} drops in {packets:,.0f} packets"
    threshold = f"at most {most:g} errors in a million"
    if share > most:
        return warning(value, threshold, "look at cable and transceiver: ethtool -S; does the count still rise?")
    return passed(value, threshold)


def ephemeral(facts: Facts, context: Context) -> Outcome:
    """Ports for outgoing connections: every rank has some to every other."""
    words, least = facts.texts("ephemeral"), int(context.thresholds.get("ephemeral-ports").value)
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return skipped("the kernel does not say")
    first, last = int(words[0]), int(words[1])
    value, threshold = f"{first} to {last}", f"at least {least:,}, without master_port"
    if last - first + 1 < least:
        return warning(value, threshold, "sysctl -w net.ipv4.ip_local_port_range='32768 60999', and in /etc/sysctl.d")
    if first <= context.cluster.master_port <= last:
        mend = "choose a master_port outside: any program's connection may take this one"
        return warning(f"{value}; master_port {context.cluster.master_port} lies in it", threshold, mend)
    return passed(value, threshold)


def names(session: Session) -> Mapping[str, Outcome]:
    """Each node looks up the others and itself."""
    hosts = [host for host in session.hosts if host not in LOCAL]
    if not hosts:
        return dict.fromkeys(session.hosts, skipped("names are for nodes; this machine was asked alone"))
    told = ask_nodes(session, _PROBE, "resolve", {host: {"names": _known(host, hosts)} for host in hosts}, _LIMIT_S)
    usual = _usual_addresses(told[0])
    return judge_each(told, lambda host, facts: _judge_names(facts, usual))


def _known(host: str, hosts: list[str]) -> list[str]:
    wanted = hosts
    if len(hosts) > _ALL_NAMES:
        at = hosts.index(host)
        wanted = [hosts[0], hosts[at - 1], host, hosts[(at + 1) % len(hosts)]]
    return list(dict.fromkeys(name_of(each) for each in wanted))


def _usual_addresses(facts: Mapping[str, Facts]) -> dict[str, str]:
    """By name the address that most nodes find first, of those that another machine can reach."""
    counts: dict[str, dict[str, int]] = {}
    for of_host in facts.values():
        found = of_host.inner("names")
        for name in found.names() if found is not None else []:
            for address in (found.texts(name) if found is not None else [])[:1]:
                if _trouble(address) is None:
                    of_name = counts.setdefault(name, {})
                    of_name[address] = of_name.get(address, 0) + 1
    return {name: max(of_name, key=of_name.__getitem__) for name, of_name in counts.items()}


def _judge_names(facts: Facts, usual: Mapping[str, str]) -> Outcome:
    found, own = facts.inner("names"), facts.text("hostname") or ""
    looked_up = (
        {name: found.texts(name) if found is not None else [] for name in found.names() if found} if found else {}
    )
    for name, addresses in {own: facts.texts("own"), **looked_up}.items():
        if not addresses:
            mend = "add it to DNS or to /etc/hosts of every node: glmforge cluster setup"
            return failed(f"{name} is not known there", "every name known", mend)
        if (trouble := _trouble(addresses[0])) is not None:
            return failed(f"{name} is {addresses[0]} there: {trouble[0]}", "an address for all", trouble[1])
        if name in usual and addresses[0] != usual[name]:
            mend = "correct /etc/hosts or DNS there"
            return failed(f"{name} is {addresses[0]} there", f"{usual[name]}, as on the others", mend)
    return passed(f"{len(looked_up)} names known", "every name known")


def _trouble(address: str) -> tuple[str, str] | None:
    """Why others cannot reach a name's first address, and the mend."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "is no address", "correct /etc/hosts or DNS there"
    if parsed.is_loopback:
        return "that is itself", "take the name out of the lines of 127.0.0.1, 127.0.1.1 and ::1 in /etc/hosts there"
    if parsed.version == 6 and parsed.is_link_local:
        return "valid on one link only", "give an IPv4 or a global address in /etc/hosts or DNS"
    return None


CHECKS = (
    Check("network.link", "the interface is up and has an address", Level.QUICK, _PROBE, judge=link),
    Check("network.mtu", "MTU as on the other nodes", Level.STANDARD, _PROBE, compare=mtu),
    Check("network.speed", "nominal link speed as on the other nodes", Level.STANDARD, _PROBE, compare=link_speed),
    Check("network.errors", "errors and drops of the interface", Level.STANDARD, _PROBE, judge=errors),
    Check("network.ephemeral", "ports for outgoing connections", Level.STANDARD, _PROBE, judge=ephemeral),
    Check("network.names", "nodes know each other's names and their own", Level.STANDARD, act=names),
)
