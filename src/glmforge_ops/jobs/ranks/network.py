"""Which interface leads to an address, and which address of this machine others see: asked of the kernel.

Libraries that guess take the first interface, or what the host's own name stands for, which in many an /etc/hosts is
127.0.1.1 or ::1. A socket that is "connected" for datagrams sends nothing, but has a route and so an own address. No
program such as `ip` is needed.
"""

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

_SIOCGIFADDR = 0x8915
_ROUTES = Path("/proc/net/route")
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_PORT = 9  # of any kind: nothing is sent


def interface_to(address: str) -> str | None:
    """The interface of the route to an IP address or a name; None if there is no route, or it cannot be told."""
    for found in addresses_of(address):
        own = own_address_towards(found)
        if own is not None and (name := _interface_of(own)) is not None:
            return name
    return None


def addresses_of(name: str) -> list[str]:
    """IP addresses of a name, those of IPv4 first: a cluster whose names have IPv6 addresses may well not route it."""
    try:
        rows = socket.getaddrinfo(name, _PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    found = dict.fromkeys(str(row[4][0]) for row in rows)
    return sorted(found, key=lambda address: ":" in address)


def own_address_towards(address: str) -> str | None:
    """The address that this machine has on the route to another; None if there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_only_here(address: str) -> bool:
    """Whether other machines cannot reach it: loopback, link-local (which needs an interface's name) or none at all."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified


def address_for(others: Iterable[str]) -> str | None:
    """This machine's address on the routes to the `others` (names or addresses); the commonest if they differ."""
    votes: dict[str, int] = {}
    for other in others:
        for address in addresses_of(other):
            own = None if is_only_here(address) else own_address_towards(address)
            if own is not None and not is_only_here(own):
                votes[own] = votes.get(own, 0) + 1
                break
    return max(votes, key=lambda own: votes[own]) if votes else None


def _interface_of(own: str) -> str | None:
    """Which interface has this address."""
    if ":" in own:
        return _interface_of_ipv6(own)
    number = int(ipaddress.IPv4Address(own))
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        if _first_ipv4(name) == number:
            return name
    return _interface_by_network(number) or ("lo" if is_only_here(own) and "lo" in names else None)


def _first_ipv4(interface: str) -> int | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        return int.from_bytes(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24], "big")
    return None


def _interface_by_network(number: int) -> str | None:
    """For an interface's second address: the directly connected network with the longest mask that holds it."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError):
        for line in _ROUTES.read_text().splitlines()[1:]:
            name, destination, gateway, *_, mask, _mtu, _window, _irtt = line.split()
            network, bits = _little_endian(destination), _little_endian(mask)
            if _little_endian(gateway) == 0 and bits and number & bits == network:
                found.append((bits, name))
    return max(found)[1] if found else None


def _interface_of_ipv6(own: str) -> str | None:
    wanted = ipaddress.IPv6Address(own.partition("%")[0]).exploded.replace(":", "")
    with contextlib.suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            address, *_, name = line.split()
            if address == wanted:
                return name
    return None


def _little_endian(text: str) -> int:
    return int.from_bytes(bytes.fromhex(text), "little")
