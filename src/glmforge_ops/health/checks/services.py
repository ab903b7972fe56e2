"""Services that a cluster runs: Slurm, exporters of metrics, and the Prometheus that collects from them."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from glmforge_ops.health.checks.check import (
    NONSENSE,
    Facts,
    Outcome,
    Session,
    act,
    failed,
    held,
    judge_each,
    name_of,
    skipped,
)
from glmforge_ops.health.checks.network import interface

_BAD = ("down", "drain", "fail", "error", "unknown", "inval", "boot", "power")
_FLAGS = {"*": "does not respond", "$": "is in maintenance", "@": "is about to reboot", "!": "is powered down"}
"""What follows a state: slurm.conf(5), sinfo(1)."""


def exporters(cluster: Facts) -> dict[str, Any]:
    """How many samples the exporters of the node and of its GPUs give, or why there are none; and its addresses."""
    found: dict[str, Any] = {"address": interface(cluster)["address"], "samples": 0, "trouble": []}
    for name, start in (("node_exporter_port", ""), ("dcgm_exporter_port", "DCGM_FI_")):
        port = cluster["monitoring"][name]
        try:
            lines = [] if port is None else _get(f"http://127.0.0.1:{port}/metrics").splitlines()
            samples = [line for line in lines if line.startswith(start) and line[:1] != "#" and " " in line]
            trouble = None if samples else "answers without such metrics"
        except (OSError, ValueError) as error:
            samples, trouble = [], str(getattr(error, "reason", error))
        found["samples"] += len(samples)
        found["trouble"] += [f"{name} {port}: {trouble}"] if trouble and port is not None else []
    return found


def _get(address: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=5.0) as reply:
        return str(reply.read(64 << 20).decode(errors="replace"))


@act("monitoring.metrics", "standard", exporters, "exporters answer, and Prometheus collects from every node")
def metrics(session: Session) -> dict[str, Outcome]:
    """Each node is among the targets, by its name, the short one or its address, and up."""
    from glmforge.files import escaped
    from glmforge.runtime.hostfile import LOCAL

    given = session.context.cluster.monitoring
    if not any((given.prometheus, given.node_exporter_port, given.dcgm_exporter_port)):
        return session.everywhere(
            skipped("no exporters or Prometheus are given", "give them in cluster.yaml: monitoring")
        )
    threshold, targets = "answers with metrics, an up target of Prometheus", dict[str, list[str]]()
    try:
        page = _get(f"{given.prometheus.rstrip('/')}/api/v1/targets?state=active") if given.prometheus else ""
        for target in json.loads(page)["data"]["activeTargets"] if page else ():
            state = "up" if target["health"] == "up" else f"down: {escaped(str(target.get('lastError'))[:300])}"
            targets.setdefault(urlsplit(target["scrapeUrl"]).hostname or "", []).append(state)
    except (OSError, *NONSENSE) as error:
        fix = "start Prometheus, or correct monitoring.prometheus"
        return session.everywhere(failed(f"{given.prometheus}: {escaped(str(error)[:300])}", threshold, fix))

    def judge_node(host: str, facts: Facts) -> Outcome:
        names = {name_of(host), name_of(host).split(".")[0], f"{facts['address']}"}
        names |= {"localhost", "127.0.0.1"} if host in LOCAL else set()
        states = [state for name in names for state in targets.get(name, ())]
        bad = [f"{each}" for each in facts["trouble"]]
        if given.prometheus and not bad:
            bad = [state for state in states if state != "up"] if states else ["not a target of Prometheus"]
        fix = "start the exporter there; scrape_configs of prometheus.yml must name it"
        value = bad[0] if bad else f"{facts['samples']:d} samples, {len(states)} targets up"
        return held(not bad, value, threshold, fix)

    return judge_each(session.known(exporters), judge_node)


@act("slurm.state", "standard", None, "Slurm would give the node jobs")
def state(session: Session) -> dict[str, Outcome]:
    """Its state, with the reason."""
    from glmforge.errors import HostError
    from glmforge_ops.hosts.machines import ask_slurm

    try:
        lines = ask_slurm("sinfo", "-N", "-h", "-o", "%N|%T|%E").splitlines()
    except HostError:
        return session.everywhere(skipped("Slurm is not used here"))
    nodes = {name: rest for name, _, rest in (line.partition("|") for line in lines)}
    missing = failed("not a Slurm node", "a node", "add it to slurm.conf, or take it from the list")
    outcomes = session.everywhere(missing if session.context.cluster.slurm else skipped("not a Slurm node"))
    for host in session.hosts:
        name = name_of(host)
        if (node := nodes.get(name) or nodes.get(name.split(".")[0])) is not None:
            state, _, reason = (field.strip() for field in node.partition("|"))
            text, flag = state.rstrip("".join(_FLAGS)), _FLAGS.get(state[-1:])
            value = f"{text}{', ' + flag if flag else ''}{': ' + reason if reason not in ('', 'none') else ''}"
            fix = "fix what the reason says, look at slurmd there; then scontrol update nodename=NODE state=resume"
            is_good = not flag and not any(bad in text for bad in _BAD)
            outcomes[host] = held(is_good, value, "takes jobs", fix)
    return outcomes
