"""Slurm of a development cluster, asked through its own commands on the head."""

import re
import subprocess
import time
from collections.abc import Mapping

from glmforge.errors import HostError
from glmforge_ops.dev.host_processes import daemon_environment, entering
from glmforge_ops.dev.options import HEAD
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.state import ClusterState

_COMMAND_LIMIT_S = 60
_LIST = re.compile(r"([a-z]+)\[([0-9,-]+)\]")
_USABLE = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING"})


def run_slurm(places: Places, state: ClusterState, *command: str) -> str:
    """Output of a command of Slurm. Raises `HostError` if it fails."""
    done = _run(places, state, command)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise HostError(f"'{' '.join(command)}' fails: {said or f'status {done.returncode}'}")
    return done.stdout


def answers(places: Places, state: ClusterState, *command: str) -> bool:
    """Whether a command of Slurm succeeds."""
    return _run(places, state, command).returncode == 0


def node_facts(places: Places, state: ClusterState) -> dict[str, dict[str, str]]:
    """What `scontrol show node` says of each node: State, SlurmdStartTime, ...; nothing while nobody answers."""
    done = _run(places, state, ("scontrol", "show", "node", "-o"))
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    facts = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return {fact["NodeName"]: fact for fact in facts if "NodeName" in fact}


def are_usable(places: Places, state: ClusterState, since: Mapping[str, int]) -> bool:
    """Whether Slurm would give these nodes jobs, and knows the slurmd that was started not before `since` (seconds).

    Without the time, what Slurm still believes of a node that failed a moment ago would be taken for its return.
    """
    facts = node_facts(places, state)
    return all(name in facts and _is_usable(facts[name], earliest) for name, earliest in since.items())


def expand(nodes: str) -> list[str]:
    """Names in Slurm's list of this cluster's nodes: `node[1-2,4]`."""
    found = _LIST.fullmatch(nodes)
    if found is None:
        return [nodes] if nodes else []
    names = []
    for part in found[2].split(","):
        first, _, last = part.partition("-")
        names += [f"{found[1]}{number}" for number in range(int(first), int(last or first) + 1)]
    return names


def _is_usable(fact: Mapping[str, str], earliest: int) -> bool:
    states = set(fact.get("State", "").split("+"))
    try:
        started = time.mktime(time.strptime(fact.get("SlurmdStartTime", ""), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # "None": it has not reported yet
        return False
    return bool(states) and states <= _USABLE and started >= earliest


def _run(places: Places, state: ClusterState, command: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    head = state.hosts[HEAD].keeper
    assert head is not None
    entered = entering(head, *command, namespaces=["--net", "--uts"]) if state.mode == "namespaces" else list(command)
    try:
        return subprocess.run(
            entered,
            env=daemon_environment(places),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"'{' '.join(command)}' gets no answer in {_COMMAND_LIMIT_S} s; see {places.logs}") from None
