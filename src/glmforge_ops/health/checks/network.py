"""The network: a node's interface, names, ssh and TCP between nodes: the master's port, bandwidth, round trip."""

from __future__ import annotations

import fcntl
import math
import os
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from glmforge_ops.health.checks.check import (
    Answers,
    Facts,
    Outcome,
    Session,
    act,
    alike,
    failed,
    held,
    judge_each,
    name_of,
    passed,
    rule,
    skipped,
    warning,
)
from glmforge_ops.health.checks.node import call, read_number, read_text

_CHUNK, _TRIPS, _PATIENCE_S = 1 << 20, 100, 30.0
_FIREWALL = "a firewall drops it: nft list ruleset, iptables -L -n; ranks meet on ports of all kinds"


def interface(cluster: Facts) -> dict[str, Any]:
    """The interface of cluster.yaml, or that of the route to the others."""
    name = cluster["interface"] or interface_to(cluster["master_addr"])
    net = f"/sys/class/net/{name}"
    is_up = read_text(f"{net}/operstate") in ("up", "unknown") and read_text(f"{net}/carrier") != "0"
    address, speed = address_of(f"{name}"), read_number(f"{net}/speed") or 0.0
    state = "is not there" if not os.path.isdir(net) else "is down" if not is_up else "up" if address else "no address"
    packets, errors = (sum(read_number(f"{net}/statistics/{way}_{what}") or 0 for way in ("rx", "tx"))
                       for what in ("packets", "errors"))  # fmt: skip
    return {"name": name, "state": f"{name} {state}", "address": address, "mtu": read_number(f"{net}/mtu"),
            "speed": speed if speed > 0 else None, "is_virtual": not os.path.exists(f"{net}/device"),
            "errors": 1e6 * errors / packets if packets else 0.0}  # fmt: skip


def address_of(name: str) -> str | None:
    """The IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        said = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))  # SIOCGIFADDR
        return socket.inet_ntoa(said[20:24])
    return None


def interface_to(peer: str | None) -> str | None:
    """The interface of the route to `peer`, or else of the default route, or else the only one; nothing is sent."""
    names = {address: name for _, name in socket.if_nameindex() if name != "lo" and (address := address_of(name))}
    for to in (peer, "192.0.2.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
            asking.connect((to or "", 9))
            if (found := names.get(asking.getsockname()[0])) is not None:
                return found
    return next(iter(names.values()), None)


# fmt: off
rule("network.link", "quick", interface, "the interface is up and has an address", "state", bad=failed,
     want=lambda facts, _: f"{facts['name']} up",
     fix="ip link set {name} up; look at cable, switch port, DHCP, and at interface in cluster.yaml")
alike("network.mtu", "standard", interface, "MTU as on the other nodes", lambda facts, _: f"{facts['mtu']:g}",
      "ip link set IF mtu {expected}, and in the network's configuration")
alike("network.speed", "standard", interface, "link speed (Mbit/s) as on the other nodes",
      lambda facts, _: facts["speed"] and f"{facts['speed']:g}", "look at cable, transceiver and switch port: ethtool")
rule("network.errors", "standard", interface, "errors of the interface", "errors", most="network-errors",
     fix="look at cable and transceiver: does the count of 'ethtool -S {name}' still rise?")
# fmt: on


def resolve(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """The address of each name, and of this machine's own, that programs try first."""
    found: dict[str, str | None] = {}
    for name in [*arguments["names"], socket.gethostname()]:
        try:
            found[name] = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError):
            found[name] = None
    return {"names": found}


@act("network.names", "standard", None, "nodes know each other's names and their own")
def names(session: Session) -> dict[str, Outcome]:
    """Each node looks up the others, with more than 64 nodes the first and its neighbours, and itself."""
    from glmforge.runtime.hostfile import LOCAL

    hosts = [host for host in session.hosts if host not in LOCAL]
    given = {}
    for at, host in enumerate(hosts):
        known = hosts if len(hosts) <= 64 else [hosts[0], hosts[at - 1], host, hosts[(at + 1) % len(hosts)]]
        given[host] = {"names": list(dict.fromkeys(map(name_of, known)))}
    answers = session.ask(resolve, given, 40.0) if hosts else {}
    counts: dict[str, Counter[str]] = {}

    def count(host: str, facts: Facts) -> Outcome:
        for name, address in facts["names"].items():
            if _trouble(address) is None:
                counts.setdefault(name, Counter())[address] += 1
        return passed("")

    judge_each(answers, count)
    usual = {name: of_name.most_common(1)[0][0] for name, of_name in counts.items()}

    def judge_names(host: str, facts: Facts) -> Outcome:
        for name, address in facts["names"].items():
            trouble = _trouble(address)
            if trouble is None and address != usual[name]:
                trouble = f"is {address} there, {usual[name]} on the others"
            if trouble is not None:
                fix = "correct DNS or /etc/hosts there, on every node the same: glmforge cluster setup"
                return failed(f"{name} {trouble}", "every name known, by one address", fix)
        return passed(f"{len(facts['names'])} names known")

    return session.everywhere(skipped("takes the nodes' names")) | judge_each(answers, judge_names)


def _trouble(address: str | None) -> str | None:
    """Why others cannot reach a name's first address."""
    if address is None:
        return "is not known there"
    parsed = ip_address(address.partition("%")[0])
    is_local = parsed.is_loopback or (parsed.version == 6 and parsed.is_link_local)
    return f"is {address} there, which others cannot reach" if is_local else None


def talk(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Answer `callers` other nodes at `port`, and measure the way to the node at `to`; both at the same time."""
    server, callers = None, arguments["callers"]
    if callers is not None:
        try:
            listener = socket.create_server(("", arguments["port"]), backlog=4096)
        except OSError as error:
            return {"taken": os.strerror(error.errno or 0)}
        server = threading.Thread(target=_serve, args=(listener, arguments["token"], callers))
        server.start()
    found = {} if arguments["to"] is None else _measure(arguments)
    if server is not None:
        server.join()
    return found


def _serve(listener: socket.socket, token: str, callers: int) -> None:
    threads: list[threading.Thread] = []
    listener.settimeout(_PATIENCE_S)
    with listener, suppress(TimeoutError):
        while len(threads) < callers:
            threads.append(threading.Thread(target=_answer, args=(listener.accept()[0], token)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def _answer(connection: socket.socket, token: str) -> None:
    """The token; some bytes sent back; then Gbit/s of what follows, counted where it arrives."""
    with connection, suppress(OSError):  # the caller reports it
        connection.settimeout(_PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token.encode() + b"\n")
        for _ in range(_TRIPS):
            connection.sendall(connection.recv(1) or b"x")
        buffer, began, total = memoryview(bytearray(_CHUNK)), time.monotonic(), 0
        while size := connection.recv_into(buffer):
            began = time.monotonic() if total == 0 else began  # the other one waits for the common start
            total += size
        connection.sendall(b"%f" % (8e-9 * total / (time.monotonic() - began)))


def _measure(arguments: Facts) -> dict[str, Any]:
    """The other's token; with `start_at` also microseconds of a byte there and back, and Gbit/s of a second."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with socket.create_connection((arguments["to"], arguments["port"]), timeout=5.0) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream, times = connection.makefile("rb"), []
                token = stream.readline().decode().strip()
                if arguments["start_at"] is None:
                    return {"reason": None, "token": token}
                for _ in range(_TRIPS):
                    began = time.monotonic()
                    connection.sendall(b"x")
                    times += [time.monotonic() - began] if stream.read(1) else []
                connection.settimeout(_PATIENCE_S)
                time.sleep(max(0.0, min(arguments["start_at"] - time.time(), 10.0)))
                end, block = time.monotonic() + 1.0, bytes(_CHUNK)
                while time.monotonic() < end:
                    connection.sendall(block)
                connection.shutdown(socket.SHUT_WR)
                return {"reason": None, "token": token, "trip": 1e6 * min(times), "rate": float(stream.read())}
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                return {"reason": error.strerror}
            time.sleep(0.2)  # the other one has not started yet
        except (OSError, ValueError) as error:
            return {"reason": "no answer" if isinstance(error, TimeoutError) else str(error)}


def _talk(session: Session, pairs: Mapping[str, str | None], port: int = 0, token: str = "") -> Answers:
    """What each host of `pairs` finds at its other one; with a `token`, only that. A host without another listens."""
    known, called = session.known(interface), Counter(pairs.values())
    common = {"port": port or 20_000 + secrets.randbelow(8_000), "token": token,
              "start_at": None if token else time.time() + 2.0 + 0.02 * len(pairs)}  # fmt: skip
    arguments = {}
    for host, to in pairs.items():
        facts = known[to] if to is not None else {}
        address = None if isinstance(facts, Outcome) else facts.get("address")
        callers = called[host] if to is None or host in called else None
        arguments[host] = common | {"callers": callers, "to": to and f"{address or name_of(to)}"}
    return session.ask(talk, arguments, 3 * _PATIENCE_S)


def _batches(hosts: list[str], most: int) -> list[list[str]]:
    """Those that wait for each other must be asked at the same time."""
    count = max(1, -(-len(hosts) // max(1, most)))
    return [hosts[start::count] for start in range(count)]


@act("network.port", "standard", interface, "master_port is free on the master and reached from all")
def master_port(session: Session) -> dict[str, Outcome]:
    """A listener on the first node, and a connection from each other one. If no node reaches it, the master fails."""
    cluster, free, token = session.context.cluster, "free on the master, reached by all", secrets.token_hex(8)
    master = next((host for host in session.hosts if name_of(host) == cluster.master_addr), session.hosts[0])
    others, port = [host for host in session.hosts if host != master], cluster.master_port

    def judge_node(host: str, found: Facts) -> Outcome:
        if host == master:
            fix = f"end what listens there: ss -ltnp sport = :{port} (an earlier job?); or take another master_port"
            return held("taken" not in found, f"port {port}: {found.get('taken', 'free')}", free, fix)
        if found["reason"] is not None:
            return failed(f"does not reach {master}:{port} ({found['reason']})", free, _FIREWALL)
        fix = "its address leads to another machine there: look at /etc/hosts, or at a port that is forwarded"
        is_right = found["token"] == token
        return held(is_right, f"reaches {'' if is_right else 'something else at '}{master}:{port}", free, fix)

    outcomes: dict[str, Outcome] = {}
    for batch in _batches(others, cluster.ssh.at_once - 1):
        answers = _talk(session, {master: None, **dict.fromkeys(batch, master)}, port, token)
        outcomes |= judge_each(answers, judge_node)
        if outcomes[master].fix:
            return session.everywhere(skipped(f"no listener on port {port} of {master}")) | {master: outcomes[master]}
    lost = [outcomes[host] for host in others if outcomes[host].fix]
    if len(lost) == len(others) > 1:
        return session.everywhere(skipped(f"no node reaches port {port} of {master}")) | {master: lost[0]}
    return outcomes


@act("network.bandwidth", "standard", interface, "TCP to the next node, all at once: round trip, and as fast as others")
def bandwidth(session: Session) -> dict[str, Outcome]:
    """All at once; pairs that are slow then again, one after the other. Blamed are the nodes whose links explain the
    slow pairs: those slow in both directions, else the sender.
    """
    share, most = session.context.limit("network-share"), session.context.limit("network-trip")
    following: dict[str, str] = {}
    rates: dict[str, float] = {}
    trips: dict[str, float] = {}

    def keep(host: str, facts: Facts) -> Outcome:
        if "taken" in facts:
            return skipped("a port for the measurement is taken; run it again")
        if facts["reason"] is not None:
            reason = f"does not reach {name_of(following[host])} ({facts['reason']})"
            return failed(reason, "reaches the next node", _FIREWALL)
        rate, trip = float(facts["rate"]), float(facts["trip"])
        if not math.isfinite(rate + trip):
            raise ValueError(f"{rate} Gbit/s, {trip} us")
        rates[host], trips[host] = max(rates.get(host, 0.0), rate), min(trips.get(host, math.inf), trip)
        return passed("")

    outcomes = session.everywhere(skipped("takes two nodes"))
    for batch in _batches(session.hosts, session.context.cluster.ssh.at_once):
        if len(batch) > 1:
            ring = dict(zip(batch, [*batch[1:], batch[0]], strict=True))
            following |= ring
            outcomes |= judge_each(_talk(session, ring), keep)
    # What most links can do: with few pairs, one slow node makes many of them slow.
    usual = sorted(rates.values(), reverse=True)[len(rates) // 4] if rates else 0.0
    for host in [host for host, rate in rates.items() if rate < share * usual][:16]:
        judge_each({host: _talk(session, {host: following[host], following[host]: None})[host]}, keep)
    slow = {host for host, rate in rates.items() if rate < share * usual}
    both = {host for host in slow if any(following[other] == host for other in slow)}
    guilty = both | {host for host in slow if following[host] not in both}

    def judge_rate(host: str, link: Facts) -> Outcome:
        # One stream of Python does not fill a fast link, and of virtual ones the speed is not known.
        nominal = 0.0 if link.get("is_virtual", True) else (link["speed"] or 0.0) / 1e3
        least = min(nominal * session.context.limit("network-nominal"), session.context.limit("network-stream"))
        value = f"{rates[host]:.2f} Gbit/s, {trips[host]:,.0f} us to {name_of(following[host])} and back"
        if host in guilty or (host not in slow and rates[host] < least):
            fix = f"look at cable, switch port and speed of {host}: ethtool, network.speed, network.errors"
            return failed(value, f"at least {share:.0%} of {usual:.2f} Gbit/s", fix)
        fix = "look for a detour (traceroute), interrupt coalescing (ethtool -c) and a slow clock governor"
        return held(trips[host] <= most, value, f"at most {most:g} us", fix, warning)

    return outcomes | judge_each({host: session.known(interface)[host] for host in rates}, judge_rate)


def reach(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Whether ssh gets to a node. It asks nothing, and accepts no unknown host key."""
    status, _, said = call(*arguments["command"], limit_s=15)
    return {"status": status, "said": said}


@act("ssh.nodes", "standard", None, "each node reaches the next one by ssh")
def nodes(session: Session) -> dict[str, Outcome]:
    """In the order of the list; mpirun, DeepSpeed's launcher and staging need it."""
    from glmforge.runtime.ssh import UNREACHABLE, explain_unreachable
    from glmforge_ops.hosts.machines import ssh_of

    if len(session.hosts) < 2:
        return session.everywhere(skipped("takes two nodes"))
    following = dict(zip(session.hosts, [*session.hosts[1:], session.hosts[0]], strict=True))

    def judge_reached(host: str, facts: Facts) -> Outcome:
        to, threshold = name_of(following[host]), "reaches the next node"
        if facts["status"] == 0:
            return passed(f"reaches {to}", threshold)
        if facts["status"] != UNREACHABLE:
            return failed(f"ssh to {to}: {facts['said']}", threshold, "apt-get install openssh-client")
        meaning, fix = explain_unreachable(facts["said"])
        if "glmforge cluster setup" in fix:
            fix = "use what 'glmforge cluster setup' made: ssh.command (or --ssh) 'ssh -F OUT/ssh/config'"
        return failed(f"ssh to {to}: {meaning}", threshold, fix)

    ssh = ssh_of(session.context.cluster)
    asked = {host: {"command": ssh.to(name_of(to), "true")} for host, to in following.items()}
    return judge_each(session.ask(reach, asked, 20.0), judge_reached)
