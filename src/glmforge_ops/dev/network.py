"""The network of a development cluster: a bridge in the head's namespace, and a link from it to each node.

No route leads out of it. This machine reaches the hosts by one interface, the uplink, whose other end is on the bridge:
it goes with the head. Rates hold in both directions, with a limit at each end of a link.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

from glmforge.errors import ConfigError, HostError
from glmforge_ops.dev.hosts import entering
from glmforge_ops.dev.state import HEAD, ClusterState

_INTERFACE, _BRIDGE = "eth0", "bridge"
_HEAD, _OUTSIDE = 254, 253
_NETWORKS = tuple(IPv4Network("10.77.0.0/16").subnets(new_prefix=24))

# A burst of 64 KiB is more than what the kernel sends at once; what waits longer than the latency is dropped.
_RATE = re.compile(r"[1-9][0-9]{0,5}(kbit|mbit|gbit)")
_SLOW = "root tbf rate {rate} burst 64kb latency 400ms"


def make_bridge(state: ClusterState) -> None:
    """The bridge, this machine's link to it, and the addresses of all hosts.

    The network is one that this machine has no route to. The uplink's name contains its number, so that two clusters
    cannot take the same.
    """
    network, state.uplink = _make_uplink(state.pid(HEAD))
    state.uplink_index = _index(state.uplink)
    state.hosts[HEAD].address = str(network[_HEAD])
    for number, name in enumerate(state.options.node_names, 1):
        state.hosts[name].address = str(network[number])
    inside = [f"link add {_BRIDGE} type bridge", "link set lo up", f"link set {_BRIDGE} up"]
    inside += [f"addr add {network[_HEAD]}/24 dev {_BRIDGE}", f"link set uplink master {_BRIDGE} up"]
    _ip(state, HEAD, inside)
    _ip(state, None, [f"addr add {network[_OUTSIDE]}/24 dev {state.uplink}", f"link set {state.uplink} up"])


def _make_uplink(head: int) -> tuple[IPv4Network, str]:
    routes = [route["dst"] for route in json.loads(_run(["ip", "-4", "-json", "route"]).stdout or "[]")]
    taken = [IPv4Network(route) for route in routes if route != "default"]
    for number, network in enumerate(_NETWORKS):
        uplink = f"glmforge{number}"
        if any(network.overlaps(route) for route in taken):
            continue
        done = _run(["ip", *f"link add {uplink} type veth peer name uplink netns {head}".split()])
        if done.returncode == 0:
            return network, uplink
        if "File exists" not in done.stderr:
            raise HostError(f"{uplink}: cannot be made: {done.stderr.strip()}")
    raise HostError("no network of 10.77.0.0/16 is free; end other clusters first")


def remove_uplink(state: ClusterState) -> None:
    """It goes with the head, but not at once; its name may be another cluster's by now, its index may not."""
    if state.uplink is not None and _index(state.uplink) == state.uplink_index:
        _run(["ip", "link", "delete", state.uplink])


def _index(interface: str) -> int:
    try:
        return int(Path("/sys/class/net", interface, "ifindex").read_text())
    except OSError:  # it is gone, or goes
        return 0


def connect(state: ClusterState, nodes: Sequence[str]) -> None:
    """A link to each of these nodes, which have none.

    A node keeps its hardware address after a failure, as a machine does: with a new one, others would send to the old
    one for half a minute.
    """
    lines = []
    for name in nodes:
        hardware = ":".join(["02", "67", *(f"{int(part):02x}" for part in state.hosts[name].address.split("."))])
        lines.append(f"link add {name} type veth peer name {_INTERFACE} address {hardware} netns {state.pid(name)}")
        lines.append(f"link set {name} master {_BRIDGE} up")
    _ip(state, HEAD, lines)
    for name in nodes:
        address = f"addr add {state.hosts[name].address}/24 dev {_INTERFACE}"
        _ip(state, name, ["link set lo up", address, f"link set {_INTERFACE} up"])


def disconnect(state: ClusterState, node: str) -> None:
    """Remove the link, if there is one: nothing that the node still sends arrives."""
    _run(entering(state, HEAD, "ip", "link", "delete", node, namespaces=["--net"]))


def set_link(state: ClusterState, node: str, *, up: bool) -> None:
    """Cut or restore a link; neither end notices."""
    _ip(state, HEAD, [f"link set {node} {'up' if up else 'down'}"])


def set_rate(state: ClusterState, node: str, rate: str | None) -> None:
    """Limit a link to `rate` in each direction, as tc writes it: "10mbit"; None: unlimited."""
    if rate is not None and not _RATE.fullmatch(rate):
        raise ConfigError(f"link rate {rate!r}: use an integer with kbit, mbit or gbit, such as 100mbit")
    for host, interface in ((HEAD, node), (node, _INTERFACE)):
        change = (
            f"delete dev {interface} root" if rate is None else f"replace dev {interface} {_SLOW.format(rate=rate)}"
        )
        done = _run(entering(state, host, "tc", "qdisc", *change.split(), namespaces=["--net"]))
        if done.returncode != 0 and rate is not None:
            raise HostError(f"{node}: its link cannot be limited: {done.stderr.strip()}")


def _ip(state: ClusterState, host: str | None, lines: Sequence[str]) -> None:
    """On a host, or on this machine."""
    command = ["ip", "-batch", "-"]
    done = _run(entering(state, host, *command, namespaces=["--net"]) if host else command, "\n".join(lines))
    if done.returncode != 0:
        raise HostError(f"ip: {' '.join(done.stderr.split())}")


def _run(command: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
