"""The network of a development cluster: a bridge in the head's namespace, and a link from it to each node.

No route leads out of it. This machine reaches the hosts by one interface, the uplink, whose other end is on the bridge:
it goes with the head. Rates hold in both directions, one limit at each end of a link.
"""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path

from glmforge.errors import HostError
from glmforge.runtime.process import ProcessIdentity
from glmforge_ops.dev.host_processes import StartedHost, entering

INTERFACE = "eth0"
BRIDGE = "bridge"
PREFIX_LENGTH = 24
NETWORKS = tuple(IPv4Network("10.77.0.0/16").subnets(new_prefix=PREFIX_LENGTH))

_HEAD, _OUTSIDE = 254, 253

# A burst of 64 KiB is more than what the kernel sends at once; what waits longer than the latency is dropped.
_SLOW = "root tbf rate {rate} burst 64kb latency 400ms"


def node_address(network: IPv4Network, number: int) -> str:
    """Of the node of that number, the first being 1."""
    return str(network[number])


def head_address(network: IPv4Network) -> str:
    return str(network[_HEAD])


def hardware_address(address: str) -> str:
    """Of an interface: a node keeps it over a failure, as a machine does. With another one, all who knew the old one
    would send to nobody for half a minute."""
    return ":".join(["02", "67", *(f"{int(part):02x}" for part in address.split("."))])


def make_bridge(head: ProcessIdentity) -> tuple[IPv4Network, str]:
    """The bridge and this machine's link to it: its network, and the name of the uplink.

    The network is one that this machine has no route to. The uplink's name says which, so that no two clusters take
    the same.
    """
    for number, network in enumerate(NETWORKS):
        uplink = f"glmforge{number}"
        if any(network.overlaps(route) for route in _routes()):
            continue
        add = f"link add {uplink} type veth peer name uplink netns {head.pid}"
        done = subprocess.run(["ip", *add.split()], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        if "File exists" not in done.stderr:
            raise HostError(f"{uplink}: cannot be made: {done.stderr.strip()}")
    else:
        raise HostError(f"no network of {NETWORKS[0].supernet(new_prefix=16)} is free; end other clusters first")
    address = f"{head_address(network)}/{PREFIX_LENGTH}"
    inside = [f"link add {BRIDGE} type bridge", "link set lo up", f"link set {BRIDGE} up"]
    inside += [f"addr add {address} dev {BRIDGE}", f"link set uplink master {BRIDGE} up"]
    _ip(inside, head)
    _ip([f"addr add {network[_OUTSIDE]}/{PREFIX_LENGTH} dev {uplink}", f"link set {uplink} up"])
    return network, uplink


def remove_uplink(name: str) -> None:
    """It goes with the head anyway, but not at once."""
    subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


def connect(head: ProcessIdentity, nodes: Mapping[str, StartedHost], addresses: Mapping[str, str]) -> None:
    """A link to each of these nodes, which has none."""
    lines = []
    for name, node in nodes.items():
        hardware = hardware_address(addresses[name])
        lines.append(f"link add {name} type veth peer name {INTERFACE} address {hardware} netns {node.pid}")
        lines.append(f"link set {name} master {BRIDGE} up")
    _ip(lines, head)
    for name, node in nodes.items():
        address = f"addr add {addresses[name]}/{PREFIX_LENGTH} dev {INTERFACE}"
        _ip(["link set lo up", address, f"link set {INTERFACE} up"], node.keeper)


def disconnect(head: ProcessIdentity, node: str) -> None:
    """Take the link away: nothing of what the node still sends arrives."""
    _ip([f"link delete {node}"], head)


def set_link(head: ProcessIdentity, node: str, *, up: bool) -> None:
    """Cut or mend a link; nobody is told."""
    _ip([f"link set {node} {'up' if up else 'down'}"], head)


def set_rate(head: ProcessIdentity, node: str, keeper: ProcessIdentity, rate: str | None) -> None:
    """Limit a link to `rate` in each direction; None: no limit."""
    for process, interface in ((head, node), (keeper, INTERFACE)):
        if rate is None:
            command = f"tc qdisc delete dev {interface} root"
        else:
            command = f"tc qdisc replace dev {interface} {_SLOW.format(rate=rate)}"
        done = _run(entering(process, *command.split(), namespaces=["--net"]))
        if done.returncode != 0 and rate is not None:
            raise HostError(f"{node}: its link cannot be limited: {done.stderr.strip()}")


def _ip(lines: Sequence[str], within: ProcessIdentity | None = None) -> None:
    command = ["ip", "-batch", "-"]
    done = _run(entering(within, *command, namespaces=["--net"]) if within else command, "\n".join(lines))
    if done.returncode != 0:
        raise HostError(f"ip: {' '.join(done.stderr.split())}")


def _run(command: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def _routes() -> Iterable[IPv4Network]:
    """This machine's, but the one that leads everywhere."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        destination, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
        if mask:
            yield IPv4Network((destination, bin(mask).count("1")))
