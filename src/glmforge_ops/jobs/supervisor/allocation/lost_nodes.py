"""Which nodes Slurm does not reach any more."""

import re
from collections.abc import Sequence

from glmforge_ops.hosts.machines import ask_slurm

_GONE = {"DOWN", "NOT_RESPONDING", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"}
"""States of a node that has been lost, as `scontrol show node` tells them: DOWN*, IDLE+NOT_RESPONDING."""


def lost_nodes(nodes: Sequence[str]) -> dict[str, str]:
    """Nodes that Slurm does not reach, with the state that it tells, in one question for all. Raises `HostError`."""
    if not nodes:
        return {}
    found = {}
    for line in ask_slurm("scontrol", "show", "node", "--oneliner", ",".join(nodes)).splitlines():
        name, state = re.search(r"\bNodeName=(\S+)", line), re.search(r"\bState=(\S+)", line)
        if name is None or state is None or name[1] not in nodes:
            continue
        flags = set(re.split(r"[+*~#!%$@^-]", state[1]))
        if flags & _GONE or "*" in state[1]:
            found[name[1]] = f"Slurm says {state[1]}"
    return found
