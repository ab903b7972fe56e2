"""The network: a node's interface, names, and TCP between nodes: the master's port, bandwidth, round trip."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections import Counter
from ipaddress import ip_address
from typing import Any

from glmforge_ops.health.checks.check import (
    Answers,
    Context,
    Facts,
    Outcome,
    Session,
    act,
    alike,
    failed,
    judge_each,
    name_of,
    passed,
    ring,
    rule,
    skipped,
    warning,
)  # fmt: skip
from glmforge_ops.health.checks.node import read_number, read_text, stat_of
from glmforge_ops.health.checks.storage import start_together, wait_together

_CHUNK = 1 << 20
_FIREWALL = "a firewall drops it: nft list ruleset, iptables -L -n; ranks meet on ports of all kinds"


def interface(cluster: Facts) -> dict[str, Any]:
    """The interface of cluster.yaml, or that of the route to the others."""
    name = cluster["interface"] or interface_to(cluster["master_addr"])
    net = f"/sys/class/net/{name}"
    is_up = read_text(f"{net}/operstate") in ("up", "unknown") and read_text(f"{net}/carrier") != "0"
    address, speed = address_of(f"{name}"), read_number(f"{net}/speed") or 0.0
    state = "is not there" if not os.path.isdir(net) else "is down" if not is_up else "up" if address else "no address"
    packets, errors, drops = (
        sum(read_number(f"{net}/statistics/{way}_{what}") or 0 for way in ("rx", "tx"))
        for what in ("packets", "errors", "dropped")
    )
    first, last = (read_text("/proc/sys/net/ipv4/ip_local_port_range") or "0 65535").split()
    return {"name": name, "state": f"{name} {state}", "address": address, "mtu": read_number(f"{net}/mtu"),
            "speed": speed if speed > 0 else None, "is_virtual": not os.path.exists(f"{net}/device"),
            "errors": 1e6 * errors / packets if packets else 0.0, "drops": drops,
            "ephemeral": [int(first), int(last)]}  # fmt: skip


def address_of(name: str) -> str | None:
    """The IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            said = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))  # SIOCGIFADDR
        except OSError:
            return None
    return socket.inet_ntoa(said[20:24])


def interface_to(peer: str | None) -> str | None:
    """The interface of the route to `peer`, or else of the default route, or else the only one; nothing is sent."""
    names = {address: name for _, name in socket.if_nameindex() if name != "lo" and (address := address_of(name))}
    for to in (peer, "192.0.2.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                asking.connect((to or "", 9))
                if (found := names.get(asking.getsockname()[0])) is not None:
                    return found
            except OSError:
                continue
    return next(iter(names.values()), None)


def _ephemeral(facts: Facts, context: Context) -> str:
    (first, last), port = facts["ephemeral"], context.cluster.master_port
    enough = last - first + 1 >= context.limit("ephemeral-ports")
    return f"{first} to {last}" if not enough else f"with master_port {port}" if first <= port <= last else "enough"


# fmt: off
rule("network.link", "quick", interface, "the interface is up and has an address", "state", bad=failed,
     want=lambda facts, _: f"{facts['name']} up",
     fix="ip link set {name} up; look at cable, switch port, DHCP, and at interface in cluster.yaml")
alike("network.mtu", "standard", interface, "MTU as on the other nodes", lambda facts, _: f"{facts['mtu']:g}",
      "ip link set IF mtu {expected}, and in the network's configuration")
alike("network.speed", "standard", interface, "link speed (Mbit/s) as on the other nodes",
      lambda facts, _: facts["speed"] and f"{facts['speed']:g}", "look at cable, transceiver and switch port: ethtool")
rule("network.errors", "standard", interface, "errors of the interface", "errors", most="network-errors",
     fix="look at cable and transceiver: ethtool -S {name}; does the count still rise? {drops} packets were dropped")
rule("network.ephemeral", "standard", interface, "ports for outgoing connections, master_port not among them",
     _ephemeral, want="enough", fix="sysctl -w net.ipv4.ip_local_port_range='32768 60999'; a master_port outside of it")
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
    told = session.ask(resolve, given, 40.0) if hosts else ({}, {})
    counts: dict[str, Counter[str]] = {}

    def count(host: str, facts: Facts) -> Outcome:
        for name, address in facts["names"].items():
            if address is not None and _trouble(address) is None:
                counts.setdefault(name, Counter())[address] += 1
        return passed("")

    judge_each(told, count)
    usual = {name: of_name.most_common(1)[0][0] for name, of_name in counts.items()}

    def judge_names(host: str, facts: Facts) -> Outcome:
        for name, address in facts["names"].items():
            trouble = "is not known there" if address is None else _trouble(address)
            if trouble is None and address != usual[name]:
                trouble = f"is {address} there, {usual[name]} on the others"
            if trouble is not None:
                fix = "correct DNS or /etc/hosts there, on every node the same: glmforge cluster setup"
                return failed(f"{name} {trouble}", "every name known, by one address", fix)
        return passed(f"{len(facts['names'])} names known")

    return session.everywhere(skipped("this machine was asked alone")) | judge_each(told, judge_names)


def _trouble(address: str) -> str | None:
    """Why others cannot reach a name's first address."""
    parsed = ip_address(address.partition("%")[0])
    is_local = parsed.is_loopback or (parsed.version == 6 and parsed.is_link_local)
    return f"is {address} there, which others cannot reach" if is_local else None


def listen(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Leave a listener behind, which ends by itself after four minutes; its port, or why there is none."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    name = cluster["interface"] or interface_to(arguments["peer"])
    try:
        listener.bind(("", arguments["port"]))
        listener.listen(4096)
    except OSError as error:
        return {"port": None, "reason": error.strerror}
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.alarm(240)  # the end, whatever happens
            os.closerange(3, listener.fileno())
            os.closerange(listener.fileno() + 1, 1024)
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=_answer, args=(connection, arguments["token"]), daemon=True).start()
        finally:
            os._exit(0)
    return {"port": listener.getsockname()[1], "address": address_of(name) if name else None, "pid": pid,
            "began": stat_of(pid)[19]}  # fmt: skip


def stop(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """End the listener, unless its process id is another process's by now."""
    if stat_of(arguments["pid"])[19:20] == [arguments["began"]]:
        os.kill(arguments["pid"], signal.SIGKILL)
    return {}


def _answer(connection: socket.socket, token: str) -> None:
    """The token first; then what the other asks for: its bytes counted, or each of them sent back."""
    with connection:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(token.encode() + b"\n")
            what = connection.recv(1)
            if what == b"c":
                connection.sendall(json.dumps(_count(connection)).encode())
            while what == b"e" and (byte := connection.recv(1)):
                connection.sendall(byte)
        except OSError:
            return  # whoever asked reports it


def _count(connection: socket.socket) -> float:
    """Gbit/s in the best tenth of a second: counted where bytes arrive, no buffer makes a link look fast."""
    buffer = memoryview(bytearray(_CHUNK))
    began = start = time.monotonic()
    total = in_window = 0
    best = 0.0
    while size := connection.recv_into(buffer):
        now = time.monotonic()
        total, in_window = total + size, in_window + size
        if now - start >= 0.1:
            best, start, in_window = max(best, in_window / (now - start)), now, 0
    return 8e-9 * max(best, total / (time.monotonic() - began))


def connect(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """What is at a listener: its token; and, as asked, Gbit/s that arrive there or microseconds of a byte and back."""
    try:
        with socket.create_connection((arguments["address"], arguments["port"]), timeout=5.0) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(60.0)
            stream = connection.makefile("rb")
            found = {"reason": None, "token": stream.readline().decode().strip()}
            if arguments.get("start_at") is not None:
                end, block = wait_together(arguments) + 1.0, bytes(_CHUNK)
                connection.sendall(b"c")
                while time.monotonic() < end:
                    connection.sendall(block)
                connection.shutdown(socket.SHUT_WR)
                return found | {"rate": float(stream.read())}
            times = []
            connection.sendall(b"e")
            for _ in range(100):
                began = time.monotonic()
                connection.sendall(b"x")
                times += [time.monotonic() - began] if stream.read(1) else []
            return found | {"trip": 1e6 * min(times)}
    except (OSError, ValueError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        return {"reason": reason}


def _stop(session: Session, listeners: Answers) -> None:
    """They would end by themselves, but only after minutes."""
    given = {host: {"pid": facts["pid"], "began": facts["began"]}
             for host, facts in listeners[0].items() if facts.get("pid") is not None}  # fmt: skip
    if given:
        session.ask(stop, given, 20.0)


@act("network.port", "standard", None, "master_port is free on the master and reached from all")
def master_port(session: Session) -> dict[str, Outcome]:
    """A listener on the first node, and a connection from each other one. What nobody reaches is the master's fault."""
    cluster, free = session.context.cluster, "free on the master, reached by all"
    master = next((host for host in session.hosts if name_of(host) == cluster.master_addr), session.hosts[0])
    others, port, token = [host for host in session.hosts if host != master], cluster.master_port, secrets.token_hex(8)
    peer = name_of(others[0]) if others else None
    told = session.ask(listen, {master: {"port": port, "token": token, "peer": peer}}, 20.0)
    facts = told[0].get(master, {"port": None, "reason": "no answer"})
    if facts["port"] is None:
        fix = (
            f"end what listens there: ss -ltnp sport = :{port} (a rank of an earlier job?); or take another master_port"
        )
        refused = told[1].get(master, failed(f"port {port}: {facts['reason']}", free, fix))
        return session.everywhere(skipped(f"no listener on port {port} of {master}")) | {master: refused}

    def judge_reached(host: str, found: Facts) -> Outcome:
        if found["reason"] is not None:
            return failed(f"does not reach {master}:{port} ({found['reason']})", free, _FIREWALL)
        fix = "its address leads to another machine there: look at /etc/hosts, or at a port that is forwarded"
        wrong = failed(f"something else answers at {master}:{port}", free, fix)
        return passed(f"reaches port {port} of {master}", free) if found["token"] == token else wrong

    where = {"address": cluster.master_addr or facts["address"] or name_of(master), "port": port}
    try:
        reached = judge_each(session.ask(connect, dict.fromkeys(others, where), 20.0), judge_reached)
    finally:
        _stop(session, told)
    lost = [outcome for outcome in reached.values() if outcome.fix]
    if len(lost) > 1 and len(lost) == len(reached):
        return dict.fromkeys(reached, skipped(f"nobody reaches port {port} of {master}")) | {master: lost[0]}
    return reached | {master: passed(f"port {port} is free", free)}


class _Pairs:
    """Each node and its next in the list, with a listener on every one, on a port of the kernel's choice."""

    def __init__(self, session: Session) -> None:
        self.session, following = session, ring(session.hosts)
        given = {host: {"port": 0, "token": "", "peer": name_of(to)} for host, to in following.items()}
        self.listeners = session.ask(listen, given, 20.0) if given else ({}, {})
        self.next = ring([host for host, facts in self.listeners[0].items() if facts.get("port") is not None])
        self.outcomes = session.everywhere(skipped("takes two nodes")) | self.listeners[1]

    def ask(self, hosts: list[str], **more: Any) -> dict[str, Facts]:
        """What each host finds at its next one; whoever does not reach it fails."""
        found, told = {}, {host: self.listeners[0][self.next[host]] for host in hosts}
        where = {host: {"address": to["address"] or name_of(self.next[host]), "port": to["port"], **more}
                 for host, to in told.items()}  # fmt: skip
        answers, lost = self.session.ask(connect, where, 100.0)
        self.outcomes |= lost
        for host, facts in answers.items():
            if facts.get("reason") is None:
                found[host] = facts
            else:
                reason = f"does not reach {name_of(self.next[host])} ({facts['reason']})"
                self.outcomes[host] = failed(reason, "reaches the next node", _FIREWALL)
        return found

    def __enter__(self) -> _Pairs:
        return self

    def __exit__(self, *_: object) -> None:
        _stop(self.session, self.listeners)


@act("network.latency", "standard", None, "TCP round trip to the next node")
def latency(session: Session) -> dict[str, Outcome]:
    """The least of a hundred bytes there and back."""
    most = session.context.limit("network-trip")
    with _Pairs(session) as pairs:
        found = pairs.ask(list(pairs.next))

    def judge_trip(host: str, facts: Facts) -> Outcome:
        value, threshold = f"{facts['trip']:,.0f} us to {name_of(pairs.next[host])} and back", f"at most {most:g} us"
        fix = "look for a detour (traceroute), interrupt coalescing (ethtool -c) and a slow clock governor"
        return passed(value, threshold) if facts["trip"] <= most else warning(value, threshold, fix)

    return pairs.outcomes | judge_each((found, {}), judge_trip)


@act("network.bandwidth", "standard", interface, "TCP to the next node, all at once, as fast as others")
def bandwidth(session: Session) -> dict[str, Outcome]:
    """All at once; pairs that are slow then again, one after the other. Blamed are the nodes whose links explain the
    slow pairs: those slow in both directions, else the sender.
    """
    share = session.context.limit("network-share")
    with _Pairs(session) as pairs:
        told = pairs.ask(list(pairs.next), **start_together(list(pairs.next)))
        rates = {host: float(facts["rate"]) for host, facts in told.items()}
        # What most links can do: with few pairs, one slow node makes many of them slow.
        usual = sorted(rates.values(), reverse=True)[len(rates) // 4] if rates else 0.0
        for host in [host for host, rate in rates.items() if rate < share * usual][:16]:
            again = pairs.ask([host], **start_together([host]))
            rates[host] = max([rates[host], *(float(facts["rate"]) for facts in again.values())])
    slow = {host for host, rate in rates.items() if rate < share * usual}
    both = {host for host in slow if any(pairs.next[other] == host for other in slow)}
    guilty = both | {host for host in slow if pairs.next[host] not in both}
    outcomes = dict(pairs.outcomes)
    for host, rate in rates.items():
        link = session.known(interface)[0].get(host, {})
        # One stream of Python does not fill a fast link, and of virtual ones nobody knows the speed.
        nominal = 0.0 if link.get("is_virtual", True) else (link["speed"] or 0.0) / 1e3
        nominal *= session.context.limit("network-nominal")
        least = min(nominal, session.context.limit("network-stream"))
        value, threshold = f"{rate:.2f} Gbit/s to {name_of(pairs.next[host])}", f"at least {share:.0%} of {usual:.2f}"
        fix = f"look at cable, switch port and speed of {host}: ethtool, network.speed, network.errors"
        is_bad = host in guilty or (host not in slow and rate < least)
        outcomes[host] = failed(value, threshold, fix) if is_bad else passed(value, threshold)
    return outcomes
