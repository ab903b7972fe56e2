"""TCP between nodes: the master's port, bandwidth and round trip between neighbours, all of them at once."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge_ops.health.checks.action import Told, ask_nodes, judge_each, name_of, ring, start_together
from glmforge_ops.health.checks.check import Check, Level, Session
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_PROBE = "connections"
_LIMIT_S, _SEND_LIMIT_S = 20.0, 100.0
_LISTEN_S = 240
_SEND_S = 1.0
_MOST_AGAIN = 16
_FIREWALL = (
    "a firewall drops it: nft list ruleset, iptables -L -n; let the nodes' network pass, since ranks meet on "
    "ports of all kinds"
)


def master_port(session: Session) -> Mapping[str, Outcome]:
    """A listener on the first node, and a connection from each other one."""
    master, *others = _in_order(session)
    token, port = secrets.token_hex(8), session.context.cluster.master_port
    told = ask_nodes(session, _PROBE, "listen", {master: _listener(port, token, others[:1])}, _LIMIT_S)
    if master in told[1]:
        return dict.fromkeys(session.hosts, skipped(f"no listener on {master}")) | told[1]
    try:
        return _try_port(session, told, others, token)
    finally:
        _stop(session, told[0])


def _try_port(session: Session, told: Told, others: list[str], token: str) -> Mapping[str, Outcome]:
    cluster = session.context.cluster
    (master,), port = told[0], cluster.master_port
    try:
        refusal = _refusal(told[0][master], port)
        address = cluster.master_addr or told[0][master].text("address") or name_of(master)
    except FactError as error:
        refusal, address = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?"), ""
    if refusal is not None:
        return dict.fromkeys(session.hosts, skipped(f"port {port} of {master} is not free")) | {master: refusal}
    where = {"address": address, "port": port, "token": token}
    reached = judge_each(
        ask_nodes(session, _PROBE, "connect", dict.fromkeys(others, where), _LIMIT_S),
        lambda host, facts: _judge_reached(facts, master, port),
    )
    return _blame_master(reached, master, port)


def _blame_master(reached: dict[str, Outcome], master: str, port: int) -> dict[str, Outcome]:
    """What nobody reaches is the master's own matter."""
    lost = [host for host, outcome in reached.items() if outcome.mend]
    if len(lost) > 1 and len(lost) == len(reached):
        unknown = skipped(f"nobody reaches port {port} of {master}")
        return dict.fromkeys(reached, unknown) | {master: reached[lost[0]]}
    return reached | {master: passed(f"port {port} is free", "free on the master, reached by all")}


def _refusal(facts: Facts, port: int) -> Outcome | None:
    if facts.number("port") is not None:
        return None
    if facts.flag("in_use"):
        mend = (
            f"end who listens there (ss -ltnp sport = :{port}; a rank of an earlier job?), or take another master_port"
        )
        return failed(f"port {port} is taken", "free on the master", mend)
    return failed(f"port {port}: {facts.text('reason')}", "free on the master", "take a master_port over 1023")


def _judge_reached(facts: Facts, master: str, port: int) -> Outcome:
    wanted = f"reaches port {port} of {master}"
    if not facts.flag("reached"):
        return failed(f"does not reach {master}:{port} ({facts.text('reason')})", wanted, _FIREWALL)
    if not facts.flag("right"):
        mend = "its address leads to another machine there: look at /etc/hosts, or at a port that is forwarded"
        return failed(f"something else answers at {master}:{port}", wanted, mend)
    return passed(wanted, "free on the master, reached by all")


def bandwidth(session: Session) -> Mapping[str, Outcome]:
    """Each node to its next in the list, all at once; pairs that are slow then again, one after the other."""
    told, pairs = _listeners(session)
    if not pairs:
        return dict.fromkeys(session.hosts, skipped("takes two nodes")) | told[1]
    limit = session.context.thresholds.get("network-share").value
    try:
        rates, failures = _send(session, told[0], pairs)
        slow = [host for host, rate in rates.items() if rate < limit * _reference(rates)]
        for host in slow[:_MOST_AGAIN]:
            again, _ = _send(session, told[0], {host: pairs[host]})
            rates[host] = max(rates[host], again.get(host, 0.0))
    finally:
        _stop(session, told[0])
    return told[1] | failures | _judge_rates(session, rates, pairs, limit)


def _judge_rates(
    session: Session, rates: Mapping[str, float], pairs: Mapping[str, str], limit: float
) -> dict[str, Outcome]:
    usual = _reference(rates)
    slow = {host for host, rate in rates.items() if rate < limit * usual}
    guilty = _blame(slow, pairs)
    threshold = f"at least {limit:.0%} of {_gbit(usual)}, as between the others"
    outcomes: dict[str, Outcome] = {}
    for host, rate in rates.items():
        value = f"{_gbit(rate)} to {name_of(pairs[host])}"
        mend = f"look at cable, switch port and speed of {host}: ethtool, network.speed, network.errors"
        nominal = _below_nominal(session, host, rate)
        if host in guilty:
            outcomes[host] = failed(value, threshold, mend)
        elif host not in slow and nominal is not None:
            outcomes[host] = failed(value, nominal, mend)
        else:
            outcomes[host] = passed(value, threshold)
    return outcomes


def _blame(slow: set[str], pairs: Mapping[str, str]) -> set[str]:
    """The nodes whose links explain the slow pairs: those slow in both directions; of other slow pairs the sender."""
    both = {host for host in slow if any(pairs[other] == host for other in slow)}
    return both | {host for host in slow if host not in both and pairs[host] not in both}


def _reference(rates: Mapping[str, float]) -> float:
    """What most of the links can do: with few pairs, one slow node makes many of them slow."""
    ranked = sorted(rates.values(), reverse=True)
    return ranked[len(ranked) // 4] if ranked else 0.0


def _below_nominal(session: Session, host: str, rate: float) -> str | None:
    """The threshold that a rate misses, if the link tells its speed; of virtual links nobody knows it.

    One stream of Python does not fill a fast link: beyond some Gbit/s nothing is said.
    """
    facts, share = session.facts.get(host, {}).get("network"), session.context.thresholds.get("network-nominal")
    if facts is None or facts.flag("is_virtual") is not False:
        return None
    speed = facts.number("speed") or 0.0
    most = session.context.thresholds.get("network-stream").value
    least = min(share.value * speed / 1000, most)
    return None if 8 * rate / 1e9 >= least else f"at least {least:g} Gbit/s of {speed / 1000:g}"


def latency(session: Session) -> Mapping[str, Outcome]:
    """A byte to the next node and back."""
    told, pairs = _listeners(session)
    if not pairs:
        return dict.fromkeys(session.hosts, skipped("takes two nodes")) | told[1]
    most = session.context.thresholds.get("network-trip").value

    def judge(host: str, facts: Facts) -> Outcome:
        took = facts.number("least")
        if took is None:
            return _not_reached(host, pairs, facts)
        value, threshold = f"{took:,.0f} us to {name_of(pairs[host])} and back", f"at most {most:g} us"
        mend = "look for a detour (traceroute), interrupt coalescing (ethtool -c) and a slow clock governor"
        return passed(value, threshold) if took <= most else warning(value, threshold, mend)

    try:
        return told[1] | judge_each(ask_nodes(session, _PROBE, "trip", _addressed(told[0], pairs), _LIMIT_S), judge)
    finally:
        _stop(session, told[0])


def _listeners(session: Session) -> tuple[Told, dict[str, str]]:
    """A listener on every node, on a port of the kernel's choice as ranks' own are; and who sends to whom."""
    following = ring(session.hosts)
    arguments = {host: _listener(0, "glmforge", [next_one]) for host, next_one in following.items()}
    told = ask_nodes(session, _PROBE, "listen", arguments, _LIMIT_S) if arguments else ({}, {})
    there = [host for host in session.hosts if host in told[0] and told[0][host].number("port") is not None]
    return told, ring(there)


def _stop(session: Session, listeners: Mapping[str, Facts]) -> None:
    """They would end by themselves, but only after minutes."""
    arguments = {
        host: {"pid": int(pid), "began": facts.text("began")}
        for host, facts in listeners.items()
        if (pid := facts.number("pid")) is not None
    }
    if arguments:
        ask_nodes(session, _PROBE, "stop", arguments, _LIMIT_S)


def _send(
    session: Session, listeners: Mapping[str, Facts], pairs: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, Outcome]]:
    """Bytes per second in the best tenth of a second, by sender; and the failures."""
    together: dict[str, Any] = {"seconds": _SEND_S, **start_together(list(pairs))}
    arguments = {host: of_host | together for host, of_host in _addressed(listeners, pairs).items()}
    facts, failures = ask_nodes(session, _PROBE, "send", arguments, _SEND_LIMIT_S)
    rates: dict[str, float] = {}
    for host, of_host in facts.items():
        try:
            best, rate = of_host.number("best"), of_host.number("rate")
        except FactError as error:
            failures[host] = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?")
            continue
        if best is None:
            failures[host] = _not_reached(host, pairs, of_host)
        else:
            rates[host] = max(best, rate or 0.0)
    return rates, failures


def _not_reached(host: str, pairs: Mapping[str, str], facts: Facts) -> Outcome:
    return failed(f"does not reach {name_of(pairs[host])} ({facts.text('reason')})", "reaches the next node", _FIREWALL)


def _addressed(listeners: Mapping[str, Facts], pairs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    return {
        host: {"address": listeners[to].text("address") or name_of(to), "port": listeners[to].number("port")}
        for host, to in pairs.items()
    }


def _listener(port: int, token: str, peers: Sequence[str]) -> dict[str, Any]:
    peer = name_of(peers[0]) if peers else None
    return {"port": port, "token": token, "peer": peer, "seconds": _LISTEN_S}


def _in_order(session: Session) -> list[str]:
    """The master first."""
    wanted = session.context.cluster.master_addr
    master = next((host for host in session.hosts if name_of(host) == wanted), session.hosts[0])
    return [master, *(host for host in session.hosts if host != master)]


def _gbit(rate: float) -> str:
    return f"{8 * rate / 1e9:.2f} Gbit/s"


CHECKS = (
    Check("network.port", "master_port is free on the master and reached from all", Level.STANDARD, act=master_port),
    Check("network.bandwidth", "TCP to the next node, all at once, as fast as others", Level.STANDARD, act=bandwidth),
    Check("network.latency", "TCP round trip to the next node", Level.STANDARD, act=latency),
)
