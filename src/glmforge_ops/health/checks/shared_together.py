"""Storage that all nodes share, as they use it together: is it one and the same, and fast from all at once?"""

import secrets
from collections.abc import Mapping
from statistics import median

from glmforge_ops.health.checks.action import ask_nodes, judge_each, name_of, ring, start_together
from glmforge_ops.health.checks.check import Check, Level, Session
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning
from glmforge_ops.health.checks.shared import NO_PATH

_PROBE = "shared"
_SEEN_WITHIN_S = 10.0
_LIMIT_S, _SPEED_LIMIT_S = 30.0, 120.0
_MEGABYTES = 256
_SPEED_MEND = (
    "look at the servers' load and the node's link to them; stripe large files, mount NFS with nconnect; "
    "stage data to local_path"
)


def same(session: Session) -> Mapping[str, Outcome]:
    """Every node leaves a file and looks for those of its neighbour and of the first node."""
    if (hosts := _users(session)) is None:
        return dict.fromkeys(session.hosts, NO_PATH)
    if len(hosts) < 2:
        return dict.fromkeys(session.hosts, skipped("takes two nodes that have the directory"))
    folder = _folder()
    tokens = {host: secrets.token_hex(8) for host in hosts}
    told = ask_nodes(session, _PROBE, "put", {h: _file(folder, h) | {"token": tokens[h]} for h in hosts}, _LIMIT_S)
    first, following = hosts[0], ring(hosts)
    names = {host: sorted({name_of(first), name_of(following[host])}) for host in hosts}
    wanted = {host: {"folder": folder, "names": names[host], "wait_s": _SEEN_WITHIN_S} for host in told[0]}
    seen = ask_nodes(session, _PROBE, "look", wanted, _LIMIT_S)
    ask_nodes(session, _PROBE, "remove", {host: {"folder": folder} for host in hosts}, _LIMIT_S)
    by_name = {name_of(host): token for host, token in tokens.items() if host in told[0]}
    outcomes = _judge_seen(seen[0], by_name)
    return told[1] | seen[1] | _blame(outcomes, hosts)


def _judge_seen(seen: Mapping[str, Facts], tokens: Mapping[str, str]) -> dict[str, list[str] | str]:
    """By host the names whose files it does not see, or why nothing is known."""
    missing: dict[str, list[str] | str] = {}
    for host, facts in seen.items():
        try:
            found = facts.inner("tokens")
            names = found.names() if found is not None else []
            missing[host] = [n for n in names if found is not None and n in tokens and found.text(n) != tokens[n]]
        except FactError as error:
            missing[host] = str(error)
    return missing


def _blame(missing: Mapping[str, list[str] | str], hosts: list[str]) -> dict[str, Outcome]:
    """The directory of most is the shared one; who sees neither the first's nor the next's file has another.

    The first node itself is blamed if nobody else sees its file.
    """
    first = name_of(hosts[0])
    others = [host for host in hosts[1:] if isinstance(missing.get(host), list)]
    first_alone = len(others) > 1 and all(first in missing[host] for host in others)
    outcomes: dict[str, Outcome] = {}
    for host, names in missing.items():
        if isinstance(names, str):
            outcomes[host] = failed(f"nothing is known: {names}", "", "is its python3 at least 3.8?")
            continue
        lost = first_alone if host == hosts[0] else first in names and not first_alone
        if lost:
            mend = "mount the shared storage there: look at /etc/fstab and findmnt"
            outcomes[host] = failed("files of the other nodes are not seen there", "one directory for all", mend)
        else:
            outcomes[host] = passed("files of the other nodes are seen", "one directory for all")
    return outcomes


def latency(session: Session) -> Mapping[str, Outcome]:
    """Small files, on all nodes at once."""
    if (hosts := _users(session)) is None:
        return dict.fromkeys(session.hosts, NO_PATH)
    most, folder = session.context.thresholds.get("shared-latency").value, _folder()
    told = ask_nodes(session, _PROBE, "latency", {host: _file(folder, host) for host in hosts}, _LIMIT_S)
    ask_nodes(session, _PROBE, "remove", {host: {"folder": folder} for host in hosts[:1]}, _LIMIT_S)

    def judge(host: str, facts: Facts) -> Outcome:
        took = facts.number("milliseconds") or 0.0
        value, threshold = f"{took:.2f} ms to make and remove a file", f"at most {most:g} ms"
        mend = "look at the metadata server's load, and for a job that opens many small files"
        return passed(value, threshold) if took <= most else warning(value, threshold, mend)

    return judge_each(told, judge)


def speed(session: Session) -> Mapping[str, Outcome]:
    """From one node, then from all at once; each reads what its neighbour has written."""
    if (hosts := _users(session)) is None:
        return dict.fromkeys(session.hosts, NO_PATH)
    folder = _folder()
    try:
        alone = _measure(session, hosts[:1], folder, "write")
        writing = _measure(session, hosts, folder, "write")
        written = [host for host in hosts if host in writing[0]]
        reading = _measure(session, written, folder, "read")
    finally:
        ask_nodes(session, _PROBE, "remove", {host: {"folder": folder} for host in hosts[:1]}, _LIMIT_S)
    try:
        return alone[1] | writing[1] | reading[1] | _judge_speed(session, alone[0], writing[0], reading[0])
    except FactError as error:
        return dict.fromkeys(hosts, failed(f"nothing is known: {error}", "", "is python3 at least 3.8 everywhere?"))


def _measure(
    session: Session, hosts: list[str], folder: str, direction: str
) -> tuple[dict[str, Facts], dict[str, Outcome]]:
    following = ring(hosts) if direction == "read" else {}
    together = start_together(hosts) | {"direction": direction, "megabytes": _MEGABYTES}
    arguments = {host: _file(folder, following.get(host, host)) | together for host in hosts}
    return ask_nodes(session, _PROBE, "speed", arguments, _SPEED_LIMIT_S)


def _judge_speed(
    session: Session, alone: Mapping[str, Facts], writing: Mapping[str, Facts], reading: Mapping[str, Facts]
) -> dict[str, Outcome]:
    limits = session.context.thresholds
    rates = {way: {host: _rate(facts) for host, facts in found.items()}
             for way, found in (("write", writing), ("read", reading))}  # fmt: skip
    one = max((_rate(facts) for facts in alone.values()), default=0.0)
    outcomes: dict[str, Outcome] = {}
    for host in rates["read"]:
        words, slow = [], False
        for way, of_hosts in rates.items():
            least = limits.get(f"shared-{way}").value
            usual = median(of_hosts.values())
            slow |= of_hosts[host] < least or of_hosts[host] < limits.get("shared-share").value * usual
            words.append(f"{way}s {of_hosts[host]:.2f} GB/s (all: {sum(of_hosts.values()):.2f})")
        value = f"{', '.join(words)}; one node alone writes {one:.2f}"
        threshold = (
            f"reads {limits.get('shared-read').value:g}, writes {limits.get('shared-write').value:g} GB/s a node with "
            f"all at once, and {limits.get('shared-share').value:.0%} of the usual"
        )
        outcomes[host] = failed(value, threshold, _SPEED_MEND) if slow else passed(value, threshold)
    return outcomes


def _rate(facts: Facts) -> float:
    return (facts.number("rate") or 0.0) / 1e9


def _users(session: Session) -> list[str] | None:
    """Hosts whose probe found the directory there; None if none is given."""
    if session.context.cluster.shared_path is None:
        return None
    return [
        host
        for host in session.hosts
        if (facts := session.facts.get(host, {}).get(_PROBE)) is None or facts.text("kind") == "directory"
    ]


def _folder() -> str:
    return f".glmforge-check-{secrets.token_hex(6)}"


def _file(folder: str, host: str) -> dict[str, str]:
    return {"folder": folder, "name": name_of(host)}


CHECKS = (
    Check("shared.same", "shared_path is one directory for all nodes", Level.STANDARD, act=same),
    Check("shared.latency", "small files in shared_path", Level.STANDARD, act=latency),
    Check("shared.speed", "bandwidth of shared_path from one node and from all at once", Level.THOROUGH, act=speed),
)
