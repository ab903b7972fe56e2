"""Step 3: the network that nodes have, and whether it is the same everywhere. Nothing is changed."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from glmforge.files import shown
from glmforge_ops.setup.plan import Context, Problem, Step, problems_by_text

_INFINITE = 2**63 - 1
_NO_MTU = 0


def network(context: Context) -> Step:
    step = Step("Network")
    facts = context.facts
    if not facts:
        return step
    kinds = {host: kind_of_network(of_host) for host, of_host in facts.items()}
    wanted = context.wanted.cluster.network or Counter(kinds.values()).most_common(1)[0][0]
    step.notes.append(f"{wanted}: {sum(kind == wanted for kind in kinds.values())} of {len(kinds)} nodes")
    step.problems += problems_by_text(
        {
            host: (f"has {kind} only, not {wanted}", "look at its adapters: ibstat, rdma link; or correct 'network'")
            for host, kind in kinds.items()
            if kind != wanted and wanted != "tcp"
        },
    )
    step.problems += _judge_interfaces(context)
    master = context.wanted.master_addr
    step.problems += problems_by_text(
        {
            host: (f"does not know the master, {master}", "add it to DNS or /etc/hosts there, or give its address")
            for host, of_host in facts.items()
            if not of_host["addresses"].get(master)
        }
    )
    if wanted != "tcp":
        step.problems += problems_by_text(
            {
                host: ("may not pin memory without limit", "set memlock to unlimited in /etc/security/limits.d")
                for host, of_host in facts.items()
                if -1 < of_host["memlock"] < _INFINITE
            },
            is_error=False,
        )
    return step


def kind_of_network(facts: Mapping[str, Any]) -> str:
    """The best that a node has: infiniband, roce or tcp."""
    active = [port for port in facts["infiniband"] if port["state"].endswith("ACTIVE")]
    if any(port["link"] == "InfiniBand" for port in active):
        return "infiniband"
    return "roce" if active else "tcp"


def _judge_interfaces(context: Context) -> list[Problem]:
    given, wrong = context.wanted.cluster.interface, dict[str, tuple[str, str]]()
    mtus = dict[str, int]()
    for host, facts in context.facts.items():
        name = given or facts["route"]
        found = facts["interfaces"].get(name)
        if name is None:
            wrong[host] = "has no default route", "give 'interface' in cluster.yaml"
        elif found is None:
            has = ", ".join(shown(each) for each in facts["interfaces"])
            wrong[host] = f"has no interface {shown(name)}, only {has}", "correct 'interface' in cluster.yaml"
        elif found["state"] == "down":
            wrong[host] = f"its interface {shown(name)} is down", f"ip link set {shown(name)} up, and look at its cable"
        else:
            mtus[host] = found["mtu"]
    problems = problems_by_text(wrong, is_error=given is not None)
    usual = Counter(mtus.values()).most_common(1)[0][0] if mtus else _NO_MTU
    odd = {
        host: (f"MTU {mtu}, but {usual} elsewhere", "make it the same on all nodes and switches")
        for host, mtu in mtus.items()
        if mtu != usual
    }
    return problems + problems_by_text(odd, is_error=False)
