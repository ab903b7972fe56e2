"""Services that a cluster runs: Slurm and munge, exporters of metrics, and the Prometheus that collects from them."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from glmforge_ops.health.checks.check import (
    NONSENSE,
    Context,
    Facts,
    Outcome,
    Session,
    act,
    failed,
    judge,
    judge_each,
    name_of,
    passed,
    skipped,
)  # fmt: skip
from glmforge_ops.health.checks.network import interface
from glmforge_ops.health.checks.node import call, find_program, names_in, read_text, run

_BAD = ("down", "drain", "fail", "error", "unknown", "inval", "boot", "power")
_FLAGS = {"*": "does not respond", "$": "is in maintenance", "@": "is about to reboot", "!": "is powered down"}
"""What follows a state: slurm.conf(5), sinfo(1)."""


def slurmd(cluster: Facts) -> dict[str, Any]:
    """Whether a slurmd runs for this host: not a container's of another name, nor under another node's name."""
    pids = [pid for pid in names_in("/proc") if pid.isdigit() and read_text(f"/proc/{pid}/comm") == "slurmd"]
    return {"there": find_program("slurmd") is not None, "up": any(map(_is_of_this_host, pids))}


def _is_of_this_host(pid: str) -> bool:
    name = re.search(r"\0-N\0?([^\0.]+)", read_text(f"/proc/{pid}/cmdline") or "")
    if name and name[1] != os.uname().nodename.split(".")[0]:
        return False
    try:
        return os.readlink(f"/proc/{pid}/ns/uts") == os.readlink("/proc/self/ns/uts")
    except OSError:  # another user's
        return True


def munge_with(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """A credential of this node's munge, or whether it takes one; its socket is the one that Slurm names."""
    found = re.search(r"^AuthInfo\s*=\s*(?:\S*,)?socket=([^,\s]+)", run("scontrol", "show", "config") or "", re.M)
    options, credential = [f"--socket={found[1]}"] if found else [], arguments.get("credential", "")
    command = ["unmunge", *options] if credential else ["munge", *options, "-n"]
    status, printed, said = call(*command, stdin=credential)
    return {"status": status, "credential": printed.strip(), "said": said}


def exporters(cluster: Facts) -> dict[str, Any]:
    """How many samples each exporter gives, or why there are none."""
    given = cluster["monitoring"]
    return {"node": _samples(given["node_exporter_port"], ""), "gpu": _samples(given["dcgm_exporter_port"], "DCGM_FI_")}


def _samples(port: int | None, start: str) -> Any:
    if port is None:
        return None
    try:
        lines = _get(f"http://127.0.0.1:{port}/metrics").splitlines()
    except (OSError, ValueError) as error:
        return [port, 0, str(getattr(error, "reason", error))]
    samples = [line for line in lines if line.startswith(start) and line[:1] != "#" and " " in line]
    return [port, len(samples), "answers without such metrics"]


def _get(address: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=5.0) as reply:
        return str(reply.read(64 << 20).decode(errors="replace"))


def _exporter(name: str, program: str, fix: str) -> None:
    @judge(f"monitoring.{name}", "standard", exporters, f"{program} answers")
    def answers(facts: Facts, context: Context) -> Outcome:
        if facts[name] is None:
            return skipped(f"monitoring.{program}_port is not given", "give it in cluster.yaml")
        port, samples, reason = facts[name]
        well = passed(f"{samples} samples at port {port}")
        return well if samples else failed(f"port {port}: {reason}", "answers with metrics", fix)


_exporter("node", "node_exporter", "systemctl start prometheus-node-exporter")
_exporter("gpu", "dcgm_exporter", "start dcgm-exporter (and its driver)")


@act("monitoring.prometheus", "standard", interface, "Prometheus collects from every node")
def prometheus(session: Session) -> dict[str, Outcome]:
    """Each node among the targets, by its name, the short one or its address, and up."""
    from glmforge.files import escaped
    from glmforge.runtime.hostfile import LOCAL

    address, threshold = session.context.cluster.monitoring.prometheus, "an up target of Prometheus"
    if address is None:
        return session.everywhere(skipped("monitoring.prometheus is not given", "give it in cluster.yaml"))
    targets: dict[str, list[str]] = {}
    try:
        for target in json.loads(_get(f"{address.rstrip('/')}/api/v1/targets?state=active"))["data"]["activeTargets"]:
            state = "up" if target["health"] == "up" else f"down: {escaped(str(target.get('lastError'))[:300])}"
            targets.setdefault(urlsplit(target["scrapeUrl"]).hostname or "", []).append(state)
    except (OSError, *NONSENSE) as error:
        fix = "start Prometheus, or correct monitoring.prometheus"
        return session.everywhere(failed(f"{address}: {escaped(str(error)[:300])}", threshold, fix))
    known, outcomes = session.known(interface)[0], {}
    for host in session.hosts:
        names = {name_of(host), name_of(host).split(".")[0], f"{known.get(host, {}).get('address')}"}
        names |= {"localhost", "127.0.0.1"} if host in LOCAL else set()
        found = sorted(state for name in names for state in targets.get(name, ()))
        bad = next((state for state in found if state != "up"), None if found else "not a target")
        fix = "look at the exporter there and the network between; scrape_configs of prometheus.yml must name it"
        outcomes[host] = passed(f"{len(found)} targets up") if bad is None else failed(bad, threshold, fix)
    return outcomes


def _each_node(session: Session, judge_node: Callable[[str, str, str], Outcome]) -> dict[str, Outcome]:
    """By what Slurm lists: state, devices, reason."""
    from glmforge.errors import HostError
    from glmforge_ops.hosts.machines import ask_slurm

    try:
        lines = ask_slurm("sinfo", "-N", "-h", "-o", "%N|%T|%G|%E").splitlines()
    except HostError:
        return session.everywhere(skipped("Slurm is not used here"))
    nodes = {name: rest for name, _, rest in (line.partition("|") for line in lines)}
    missing = failed("not a Slurm node", "a node", "add it to slurm.conf, or take it from the list")
    outcomes = session.everywhere(missing if session.context.cluster.slurm else skipped("not a Slurm node"))
    for host in session.hosts:
        name = name_of(host)
        if (node := nodes.get(name) or nodes.get(name.split(".")[0])) is not None:
            state, gres, reason = (field.strip() for field in node.split("|", 2))
            outcomes[host] = judge_node(state, gres, reason)
    return outcomes


@act("slurm.state", "standard", None, "Slurm would give the node jobs")
def state(session: Session) -> dict[str, Outcome]:
    """Its state, with the reason."""

    def judge_state(state: str, gres: str, reason: str) -> Outcome:
        text, flag = state.rstrip("".join(_FLAGS)), _FLAGS.get(state[-1:])
        value = f"{text}{', ' + flag if flag else ''}{': ' + reason if reason not in ('', 'none') else ''}"
        fix = "fix what the reason says, look at slurmd there; then scontrol update nodename=NODE state=resume"
        is_bad = flag or any(bad in text for bad in _BAD)
        return failed(value, "takes jobs", fix) if is_bad else passed(text, "takes jobs")

    return _each_node(session, judge_state)


@act("slurm.gpus", "standard", None, "Slurm counts as many GPUs as there should be")
def gpus(session: Session) -> dict[str, Outcome]:
    """In "gpu:h100:8(S:0-1),nvme:1" there are 8."""
    wanted = session.context.cluster.gpus_per_node

    def judge_gpus(state: str, gres: str, reason: str) -> Outcome:
        found = sum(int(number or 1) for number in re.findall(r"(?:^|,)gpu(?::[a-z][^:,(]*)?(?::(\d+))?", gres))
        fix = "correct Gres= in slurm.conf and gres.conf, then scontrol reconfigure"
        threshold = f"{wanted} GPUs, as gpus_per_node"
        return passed(f"{found} GPUs") if found == wanted else failed(f"{found} GPUs", threshold, fix)

    return _each_node(session, judge_gpus)


@judge("slurm.daemon", "quick", slurmd, "slurmd is up")
def daemon(facts: Facts, context: Context) -> Outcome:
    """This host's own, where one is installed."""
    if facts["up"]:
        return passed("slurmd is up")
    if not facts["there"] or context.cluster.slurm is None:
        return skipped("not a Slurm node: no slurmd runs for this host")
    return failed("slurmd is not up", "up", "systemctl start slurmd; look at its log")


@act("slurm.munge", "standard", None, "credentials pass between nodes")
def munge(session: Session) -> dict[str, Outcome]:
    """What the first node signs, all others read: keys and clocks agree."""
    if session.context.cluster.slurm is None:
        return session.everywhere(skipped("cluster.yaml names no partition"))
    first = session.hosts[0]
    signed, failures = session.ask(munge_with, {first: {}}, 15.0)
    if first in failures or signed[first]["status"] != 0:
        said = failures.get(first) or failed(f"munge: {signed[first]['said']}", "signs", "systemctl start munge")
        return session.everywhere(skipped(f"{first} signs nothing")) | {first: said}

    def judge_munge(host: str, facts: Facts) -> Outcome:
        if facts["status"] in (0, 17):  # 17: its munged has read the credential before; nodes may share one
            return passed("reads what the first node signs")
        fix = "give it the others' /etc/munge/munge.key and clock, then restart munged"
        return failed(f"unmunge: {facts['said']}", "the same key, clocks that agree", fix)

    asked = {host: {"credential": signed[first]["credential"]} for host in session.hosts}
    return judge_each(session.ask(munge_with, asked, 15.0), judge_munge)
