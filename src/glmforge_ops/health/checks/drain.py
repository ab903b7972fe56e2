"""Draining a node that fails its checks, as Slurm's Prolog and HealthCheckProgram: no job begins there until it is
fixed, and then Slurm takes it back by itself.

The reason begins with a mark of ours, and only a node whose reason has that mark is resumed: a node that a person or
another program drained stays so.
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
    plain = re.sub(r"[^A-Za-z0-9 .,:;/_()%+-]", "?", failing[0])  # Slurm's commands read more into other characters
    return MARK + plain[: _MAX_REASON - len(MARK) - len(more)] + more


def apply_to_node(reason: str | None, node: str | None = None) -> str:
    """Drain this node for `reason`, or resume it if it was drained here; returns what was done. Raises `HostError`.

    A node that is drained or down already keeps its state and its reason.
    """
    node = node or socket.gethostname().split(".")[0]
    text = ask_slurm("scontrol", "show", "node", node)
    state = "".join(re.findall(r"\bState=(\S+)", text))
    given = "".join(re.findall(r"^\s*Reason=(.*?)(?: \[\S+@\S+\])?$", text, re.MULTILINE))
    is_ours = given.startswith(MARK)
    if reason is not None and is_ours and given != reason:
        changes, done = [f"reason={reason}"], "was drained already; the reason is updated"
    elif reason is not None:
        if "DRAIN" in state or "DOWN" in state:
            return f"{node}: is drained or down already"
        changes, done = ["state=drain", f"reason={reason}"], "drained"
    elif "DRAIN" in state and is_ours:
        changes, done = ["state=resume"], "resumed"
    else:
        return f"{node}: left as it is"
    ask_slurm("scontrol", "update", f"nodename={node}", *changes)
    return f"{node}: {done}"
