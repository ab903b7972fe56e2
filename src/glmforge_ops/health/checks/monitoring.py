"""Monitoring: exporters on every node, and the Prometheus that collects from them."""

import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from glmforge.errors import HostError
from glmforge.files import parse_json, shown
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.health.checks.action import name_of
from glmforge_ops.health.checks.check import Check, Context, Level, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped

_LIMIT_S = 10.0
_MOST = 64 << 20
_UP = "an up target of Prometheus"


def node_exporter(facts: Facts, context: Context) -> Outcome:
    """Metrics of the machine."""
    return _judge(facts.inner("node_exporter"), "node_exporter", "samples", "systemctl start prometheus-node-exporter")


def dcgm_exporter(facts: Facts, context: Context) -> Outcome:
    """Metrics of its GPUs."""
    return _judge(facts.inner("dcgm_exporter"), "dcgm_exporter", "gpu_samples", "start dcgm-exporter (and its driver)")


def _judge(found: Facts | None, name: str, what: str, mend: str) -> Outcome:
    if found is None:
        return skipped(f"monitoring.{name}_port is not given", "give it in cluster.yaml")
    port, reason, count = found.number("port"), found.text("reason"), found.number(what)
    if reason is not None:
        return failed(f"port {port:g}: {reason}", "answers with metrics", mend)
    if not count:
        return failed(f"port {port:g} answers without such metrics", "answers with metrics", mend)
    return passed(f"{count:g} samples at port {port:g}", "answers with metrics")


def prometheus(session: Session) -> Mapping[str, Outcome]:
    """Each node among the targets, and up."""
    address = session.context.cluster.monitoring.prometheus
    if address is None:
        return dict.fromkeys(session.hosts, skipped("monitoring.prometheus is not given", "give it in cluster.yaml"))
    try:
        targets = read_targets(address)
    except HostError as error:
        return dict.fromkeys(
            session.hosts, failed(str(error), _UP, "start Prometheus, or correct monitoring.prometheus")
        )
    return {host: _judge_target(targets, _names(session, host)) for host in session.hosts}


def read_targets(address: str) -> dict[str, list[tuple[bool, str]]]:
    """Whether each of a machine's targets is up, and its last error. Raises `HostError`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address.rstrip('/')}/api/v1/targets?state=active", timeout=_LIMIT_S) as reply:
            text = reply.read(_MOST).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise HostError(f"{address} does not answer: {shown(str(getattr(error, 'reason', error)))}") from None
    answer = parse_json(text, dict, source=f"the answer of {address}", error=HostError)
    targets: dict[str, list[tuple[bool, str]]] = {}
    data = answer.get("data")
    for target in data.get("activeTargets", []) if isinstance(data, dict) else []:
        host, is_up, reason = _read_target(target)
        targets.setdefault(host, []).append((is_up, reason))
    return targets


def _read_target(target: Any) -> tuple[str, bool, str]:
    fields = target if isinstance(target, dict) else {}
    host = urlsplit(str(fields.get("scrapeUrl", ""))).hostname or ""
    return host, fields.get("health") == "up", shown(str(fields.get("lastError", "")))


def _names(session: Session, host: str) -> list[str]:
    """By which Prometheus may know a node: its name, the short one, its address."""
    name = name_of(host)
    network = session.facts.get(host, {}).get("network")
    address = network.text("address") if network is not None else None
    own = ["localhost", "127.0.0.1"] if host in LOCAL else []
    return [name, name.split(".")[0], *([address] if address else []), *own]


def _judge_target(targets: Mapping[str, list[tuple[bool, str]]], names: list[str]) -> Outcome:
    known = [target for name in dict.fromkeys(names) for target in targets.get(name, [])]
    if not known:
        return failed("is no target", _UP, "add it to scrape_configs of prometheus.yml")
    down = [reason for is_up, reason in known if not is_up]
    if down:
        mend = "look at the exporter there and at the network between"
        return failed(f"{len(down)} of {len(known)} targets down: {down[0] or 'no reason given'}", _UP, mend)
    return passed(f"{len(known)} target{'s' if len(known) > 1 else ''} up", _UP)


CHECKS = (
    Check("monitoring.node", "node_exporter answers", Level.STANDARD, "monitoring", judge=node_exporter),
    Check("monitoring.gpu", "dcgm_exporter answers", Level.STANDARD, "monitoring", judge=dcgm_exporter),
    Check("monitoring.prometheus", "Prometheus collects from every node", Level.STANDARD, act=prometheus),
)
