"""Services that a cluster runs: Slurm, and the Prometheus that collects metrics from exporters on the nodes."""

from __future__ import annotations

import json

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


@act("monitoring.metrics", "standard", interface, "Prometheus collects from every node")
def metrics(session: Session) -> dict[str, Outcome]:
    """Each node is among the targets, by its name, the short one or its address, and its exporters are up."""
    import urllib.request
    from urllib.parse import urlsplit

    from glmforge.files import escaped
    from glmforge.runtime.hostfile import LOCAL

    address, threshold = session.context.cluster.monitoring.prometheus, "exporters are up targets of Prometheus"
    if address is None:
        return session.everywhere(skipped("monitoring.prometheus is not given", "give it in cluster.yaml"))
    targets: dict[str, list[str]] = {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address.rstrip('/')}/api/v1/targets?state=active", timeout=5.0) as reply:
            found = json.loads(reply.read(64 << 20))["data"]["activeTargets"]
        for target in found:
            state = "up" if target["health"] == "up" else f"down: {escaped(str(target.get('lastError'))[:300])}"
            targets.setdefault(urlsplit(target["scrapeUrl"]).hostname or "", []).append(state)
    except (OSError, *NONSENSE) as error:
        fix = "start Prometheus, or correct monitoring.prometheus"
        return session.everywhere(failed(f"{address}: {escaped(str(error)[:300])}", threshold, fix))

    def judge_node(host: str, facts: Facts) -> Outcome:
        names = {name_of(host), name_of(host).split(".")[0], f"{facts['address']}"}
        names |= {"localhost", "127.0.0.1"} if host in LOCAL else set()
        states = sorted(state for name in names for state in targets.get(name, ()))
        bad = next((state for state in states if state != "up"), None if states else "not a target")
        fix = "look at the exporter there and the network between; scrape_configs of prometheus.yml must name it"
        return held(bad is None, bad or f"{len(states)} targets up", threshold, fix)

    return judge_each(session.known(interface), judge_node)


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
