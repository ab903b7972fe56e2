"""The network as a node sees it: its interface, its names, and what it can reach."""

import os
import socket
import struct

_NET = "/sys/class/net"


def gather(cluster: dict) -> dict:
    peer = cluster["master_addr"]
    interface = cluster["interface"] or interface_to(peer)
    found: dict = {"interface": interface, "hostname": socket.gethostname(), "up": None, "address": None, "speed": None}
    found.update({"mtu": None, "is_virtual": None, "ephemeral": _words("/proc/sys/net/ipv4/ip_local_port_range")})
    found["there"] = interface is not None and os.path.isdir(os.path.join(_NET, interface))
    if interface is None or not found["there"]:
        return found
    folder = os.path.join(_NET, interface)
    found["up"] = (_read(folder, "operstate") in ("up", "unknown")) and _read(folder, "carrier") != "0"
    found["mtu"], found["speed"] = _number(folder, "mtu"), _number(folder, "speed")
    found["is_virtual"] = not os.path.exists(os.path.join(folder, "device"))
    found["address"] = address_of(interface)
    for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_packets", "tx_packets"):
        found[name] = _number(folder, "statistics/" + name)
    return found


def resolve(cluster: dict, arguments: dict) -> dict:
    """Addresses of each name, in the order in which programs try them; and of this machine's own name."""
    names = {name: _addresses(name) for name in arguments["names"]}
    return {"names": names, "hostname": socket.gethostname(), "own": _addresses(socket.gethostname())}


def address_of(interface: str) -> "str | None":
    """The IPv4 address of an interface."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            said = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", interface[:15].encode()))  # SIOCGIFADDR
        except OSError:
            return None
    return socket.inet_ntoa(said[20:24])


def interface_to(peer: "str | None") -> "str | None":
    """The interface of the route to `peer`, or else of the default route; nothing is sent.

    Without either, the only one besides the loopback.
    """
    if peer is not None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                asking.connect((peer, 9))
                address = asking.getsockname()[0]
        except OSError:
            address = None
        for _, name in socket.if_nameindex():
            if address is not None and name != "lo" and address_of(name) == address:
                return name
    with open("/proc/net/route", encoding="utf-8") as file:
        routes = [line.split() for line in file][1:]
    default = [route[0] for route in routes if route[1] == "00000000"]
    others = [name for _, name in socket.if_nameindex() if name != "lo" and address_of(name) is not None]
    return default[0] if default else others[0] if others else None


def _addresses(name: str) -> "list[str] | None":
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _words(file: str) -> "list[str]":
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read().split()
    except OSError:
        return []


def _read(folder: str, name: str) -> "str | None":
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:  # the kernel has no answer for a link that is down
        return None


def _number(folder: str, name: str) -> "int | None":
    text = _read(folder, name)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
