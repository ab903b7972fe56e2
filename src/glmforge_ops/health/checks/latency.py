"""Latency of RDMA between neighbours in a ring of all nodes, by `ib_write_lat` of the perftest tools.

Each node is measured twice, as the one that asks and as the one that is asked, in two rounds (three for an odd number
of nodes) of pairs that do not disturb each other. A slow node shows at itself and at its neighbour.
"""

import re
import shlex
from collections.abc import Mapping

from glmforge_ops.health.checks.check import Check, Context, Level, Session
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.infiniband import ports_of
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped
from glmforge_ops.hosts.fanout import Answer

_PORT, _BYTES, _TIMES, _LIMIT_S = 18_515, 8, 1000, 30
_MISSING = 127
_RESULT = re.compile(rf"^\s*{_BYTES}\s+\d+\s+[\d.]+\s+[\d.]+\s+(\d+(?:\.\d+)?)\s", re.MULTILINE)
_SKIPPED = skipped("ib_write_lat is not there", "install perftest")


def latency(session: Session) -> Mapping[str, Outcome]:
    """Median of one way, in microseconds, from each node to the next."""
    outcomes: dict[str, Outcome] = {}
    ports: dict[str, Facts] = {}
    for host in session.hosts:
        try:
            port = _active_port(session.facts[host].get("infiniband"), session.context)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "look at what its probe answers")
            continue
        if port is None:
            outcomes[host] = skipped("no active port of RDMA was found")
        else:
            ports[host] = port
    if len(ports) < 2 or session.fanout.at_once < 2:
        return outcomes | dict.fromkeys(ports, skipped("it takes two nodes that are asked at the same time"))
    for pairs in rounds(list(ports)):
        outcomes |= _measure(session, pairs, ports)
    return outcomes


def rounds(hosts: list[str]) -> list[list[tuple[str, str]]]:
    """Each host and the next in a ring, such that no host is in two pairs of a round."""
    edges = [(host, hosts[(index + 1) % len(hosts)]) for index, host in enumerate(hosts)]
    last = [edges.pop()] if len(hosts) % 2 else []
    return [pairs for pairs in (edges[::2], edges[1::2], last) if pairs]


def _active_port(facts: Facts | None, context: Context) -> Facts | None:
    ports = ports_of(facts, context) if facts is not None else []
    return next((port for port in ports if port.text("state") == "ACTIVE"), None)


def _measure(session: Session, pairs: list[tuple[str, str]], ports: Mapping[str, Facts]) -> dict[str, Outcome]:
    """By the host that asks. The one that is asked is started first: it waits."""
    scripts: dict[str, str] = {}
    for host, other in pairs:
        scripts[other] = _script(ports[other])
        scripts[host] = _script(ports[host], other)
    answers = session.fanout.run(list(scripts), scripts.__getitem__, _LIMIT_S + 20)
    return {host: _judge(answers[host], answers[other], ports[host], session.context) for host, other in pairs}


def _script(port: Facts, other: str = "") -> str:
    device, number = shlex.quote(port.text("device") or ""), shlex.quote(port.text("port") or "1")
    tool = f"ib_write_lat -F -d {device} -i {number} -p {_PORT} -s {_BYTES} -n {_TIMES}"
    found = f"command -v ib_write_lat >/dev/null || exit {_MISSING}; "
    if not other:
        return f"{found}exec timeout {_LIMIT_S} {tool}"
    asked = f"timeout 10 {tool} {shlex.quote(other)}"
    return f"{found}for try in 1 2 3 4 5; do {asked} && exit 0; sleep 1; done; exit 1"


def _judge(answer: Answer, other: Answer, port: Facts, context: Context) -> Outcome:
    limit = context.thresholds.get("rdma-latency", port.text("layer") or "")
    threshold = f"at most {limit.value:g} us"
    if _MISSING in (answer.status, other.status):
        return _SKIPPED
    found = _RESULT.search(answer.stdout.decode(errors="replace"))
    if not answer.is_done or found is None:
        mend = f"run 'ib_write_lat' by hand on both; is port {_PORT} open between them?"
        return failed(f"no answer from {other.host}: {answer.reason or other.reason}", threshold, mend)
    value = f"{float(found.group(1)):g} us to {other.host}"
    mend = "look at CPU frequency (numa.governor), at the cable's errors, and for a detour in the switches"
    return passed(value, threshold) if float(found.group(1)) <= limit.value else failed(value, threshold, mend)


CHECKS = (Check("infiniband.latency", "latency of RDMA to the next node", Level.THOROUGH, "infiniband", act=latency),)
