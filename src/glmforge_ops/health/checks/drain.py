"""Draining a node that fails its checks, as Slurm's Prolog and HealthCheckProgram: no job begins there until it is
fixed, and then Slurm takes it back by itself.

The reason begins with a mark of ours, and only a node whose reason has that mark is resumed: who was drained by a
person, or by another program, stays so.
"""

import re
import socket

from glmforge_ops.health.checks.check import Status
from glmforge_ops.health.checks.examine import Findings
from glmforge_ops.hosts.machines import ask_slurm

MARK = "glmforge check: "
_MAX_REASON = 200


def reason_of(findings: Findings) -> str | None:
    """What failed, in one line for Slurm and for logs; None if nothing did."""
    failing = [
        f"{check}: {outcome.value}"
        for check, of_hosts in findings.outcomes.items()
        for outcome in of_hosts.values()
        if outcome.status is Status.FAIL
    ]
    if not failing:
        return None
    more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
    return MARK + _plain(failing[0])[: _MAX_REASON - len(MARK) - len(more)] + more


def apply_to_node(reason: str | None, node: str | None = None) -> str:
    """Drain this node for `reason`, or resume it if it was drained here; what was done, in words. Raises `HostError`.

    A node that is drained or down already keeps its state and its reason.
    """
    node = node or socket.gethostname().split(".")[0]
    state, given = _state(node)
    if reason is not None:
        if given.startswith(MARK) and given != reason:
            ask_slurm("scontrol", "update", f"nodename={node}", f"reason={reason}")
            return f"{node}: was drained already; the reason is updated"
        if "DRAIN" in state or "DOWN" in state:
            return f"{node}: is drained or down already"
        ask_slurm("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")
        return f"{node}: drained"
    if "DRAIN" in state and given.startswith(MARK):
        ask_slurm("scontrol", "update", f"nodename={node}", "state=resume")
        return f"{node}: resumed"
    return f"{node}: left as it is"


def _state(node: str) -> tuple[str, str]:
    """State and reason, as `scontrol show node` tells them."""
    text = ask_slurm("scontrol", "show", "node", node)
    state = re.search(r"\bState=(\S+)", text)
    reason = re.search(r"^\s*Reason=(.*?)(?: \[\S+@\S+\])?$", text, re.MULTILINE)
    return state[1] if state else "", reason[1] if reason else ""


def _plain(text: str) -> str:
    """Without what Slurm's commands would read as more than text."""
    return re.sub(r"[^A-Za-z0-9 .,:;/_()%+-]", "?", text)
