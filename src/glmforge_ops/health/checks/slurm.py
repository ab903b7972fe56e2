"""Slurm's view of the nodes: state, reason, GPUs and time limits; its daemon, and munge between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glmforge.errors import HostError
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.health.checks.action import ask_nodes, judge_each, name_of
from glmforge_ops.health.checks.check import Check, Context, Level, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning
from glmforge_ops.hosts.machines import ask_slurm

_LIMIT_S = 15.0
_REPLAYED = 17
"""What unmunge ends with if its munged has read the credential before: nodes may share one munged."""

_NO_SLURM = skipped("Slurm is not used here")
_BAD = ("down", "drain", "fail", "error", "unknown", "inval", "boot", "power")
# slurm.conf(5), sinfo(1): what follows a state.
_FLAGS = {"*": "does not respond", "$": "is in maintenance", "@": "is about to reboot", "!": "is powered down"}


@dataclass(frozen=True)
class NodeLine:
    """A node as sinfo lists it."""

    state: str
    reason: str
    gres: str
    partitions: tuple[str, ...]


Judge = Callable[[NodeLine], Outcome]


def read_nodes(text: str) -> dict[str, NodeLine]:
    """Lines of `sinfo -N -h -o '%N|%T|%G|%R|%E'`: one for each node and partition, the reason last."""
    nodes: dict[str, NodeLine] = {}
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) == 5:
            name, state, gres, partition, reason = (field.strip() for field in fields)
            before = nodes[name].partitions if name in nodes else ()
            nodes[name] = NodeLine(state, reason, gres, (*before, partition))
    return nodes


def state(session: Session) -> Mapping[str, Outcome]:
    """Whether Slurm would give the node a job."""

    def judge(node: NodeLine) -> Outcome:
        text, flag = node.state.rstrip("".join(_FLAGS)), node.state[-1:]
        reason = f": {node.reason}" if node.reason not in ("", "none") else ""
        if flag in _FLAGS:
            mend = "look at slurmd there and at the network between"
            return failed(f"{text}, {_FLAGS[flag]}{reason}", "takes jobs", mend)
        if any(bad in text for bad in _BAD):
            mend = "mend what the reason says, then scontrol update nodename=NODE state=resume"
            return failed(f"{text}{reason}", "takes jobs", mend)
        return passed(text, "takes jobs")

    return _each_node(session, judge)


def gpus(session: Session) -> Mapping[str, Outcome]:
    """GPUs that Slurm counts on the node."""

    def judge(node: NodeLine) -> Outcome:
        wanted, found = session.context.cluster.gpus_per_node, count_gpus(node.gres)
        value, threshold = f"{found} GPUs", f"{wanted} GPUs, as gpus_per_node"
        if found == wanted:
            return passed(value, threshold)
        return failed(value, threshold, "correct Gres= in slurm.conf and gres.conf, then scontrol reconfigure")

    return _each_node(session, judge)


def count_gpus(gres: str) -> int:
    """Of "gpu:h100:8(S:0-1),nvme:1": 8."""
    total = 0
    for entry in gres.split(","):
        words = entry.partition("(")[0].split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdigit() else 1
    return total


def limits(session: Session) -> Mapping[str, Outcome]:
    """A partition's default time limit ends a job whose script names none."""
    try:
        rows = (line.split("|") for line in ask_slurm("sinfo", "-h", "-o", "%R|%l|%L").splitlines())
        times = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}
    except HostError:
        return dict.fromkeys(session.hosts, _NO_SLURM)

    def judge(node: NodeLine) -> Outcome:
        name = session.context.cluster.slurm.partition if session.context.cluster.slurm else None
        most, usual = times.get(name or node.partitions[0], ("?", "?"))
        value = f"at most {most}, {usual if usual != 'n/a' else most} if a job names none"
        if usual not in ("n/a", "infinite", most):
            return warning(value, "no shorter default", "name --time in the job's script")
        return passed(value, "no shorter default")

    return _each_node(session, judge)


def _each_node(session: Session, judge: Judge) -> Mapping[str, Outcome]:
    try:
        nodes = read_nodes(ask_slurm("sinfo", "-N", "-h", "-o", "%N|%T|%G|%R|%E"))
    except HostError:
        return dict.fromkeys(session.hosts, _NO_SLURM)
    return {host: _of_node(session, nodes, host, judge) for host in session.hosts}


def _of_node(session: Session, nodes: Mapping[str, NodeLine], host: str, judge: Judge) -> Outcome:
    if host in LOCAL:
        return skipped("is asked for nodes by their names")
    name = name_of(host)
    node = nodes.get(name) or nodes.get(name.split(".")[0])
    if node is not None:
        return judge(node)
    if session.context.cluster.slurm is None:
        return skipped("is no node of Slurm's")
    return failed("is no node of Slurm's", "a node", "add it to slurm.conf, or take it from the list")


def daemon(facts: Facts, context: Context) -> Outcome:
    """This host's own slurmd, where one is installed."""
    if not facts.flag("slurmd_there"):
        return skipped("slurmd is not installed")
    if facts.flag("slurmd_up"):
        return passed("slurmd is up", "up")
    if context.cluster.slurm is None:
        return skipped("is no node of Slurm's: slurmd is installed, and none runs for this host")
    return failed("slurmd is not up", "up", "systemctl start slurmd; look at its log")


def munge(session: Session) -> Mapping[str, Outcome]:
    """What the first node signs, all others read: keys and clocks agree."""
    if session.context.cluster.slurm is None:
        return dict.fromkeys(session.hosts, skipped("cluster.yaml names no partition"))
    first = session.hosts[0]
    signed = ask_nodes(session, "slurm", "sign", {first: {}}, _LIMIT_S)
    if first in signed[1]:
        return dict.fromkeys(session.hosts, skipped(f"{first} signs nothing")) | signed[1]
    credential, status = signed[0][first].text("printed"), signed[0][first].number("status")
    if status != 0 or not credential:
        failure = failed(
            f"munge: {signed[0][first].text('said')}", "signs", "start munged there: systemctl start munge"
        )
        return dict.fromkeys(session.hosts, skipped(f"{first} signs nothing")) | {first: failure}
    asked = {host: {"credential": credential} for host in session.hosts}
    return judge_each(ask_nodes(session, "slurm", "read_signed", asked, _LIMIT_S), _judge_munge)


def _judge_munge(host: str, facts: Facts) -> Outcome:
    if facts.number("status") in (0, _REPLAYED):
        return passed("reads what the first node signs", "the same key, clocks that agree")
    said = facts.text("said") or "no reason given"
    mend = "give it the others' /etc/munge/munge.key and clock, then restart munged"
    return failed(f"unmunge: {said}", "the same key, clocks that agree", mend)


CHECKS = (
    Check("slurm.state", "Slurm would give the node jobs", Level.STANDARD, act=state),
    Check("slurm.daemon", "slurmd is up", Level.QUICK, "slurm", judge=daemon),
    Check("slurm.gpus", "Slurm counts as many GPUs as there should be", Level.STANDARD, act=gpus),
    Check("slurm.limits", "time limits of the partition", Level.STANDARD, act=limits),
    Check("slurm.munge", "credentials pass between nodes", Level.STANDARD, act=munge),
)
