"""Where a job runs: which nodes it has, which of them answer, and whether it can be queued again.

`Allocation` is this machine, or hosts that are reached through ssh, those of a PBS job too: its scheduler cannot queue
a job again, which therefore ends with the status of a job that gave way. `SlurmAllocation` asks Slurm's own commands,
within the job; its controller may be down for a while, and a question that it does not answer counts as unchanged.
"""

import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glmforge.config.launch import LaunchConfig
from glmforge.errors import HostError, LaunchError
from glmforge.files import read_text
from glmforge.runtime.hostfile import LOCAL, expand_hosts
from glmforge.runtime.launch import address_of_node
from glmforge_ops.health.checks.drain import apply_to_node
from glmforge_ops.hosts.fanout import Fanout, Outcome
from glmforge_ops.hosts.machines import ask_slurm
from glmforge_ops.jobs.ranks.assignment import own_address_towards, slurm_job
from glmforge_ops.jobs.schedulers.base import asking
from glmforge_ops.jobs.schedulers.here import id_of_this_process
from glmforge_ops.jobs.script.hosts import host_names

_ANSWER_S = 10.0
_LOOPBACK = "127.0.0.1"

_OVER = {"COMPLETING", "CANCELLED", "TIMEOUT", "PREEMPTED", "COMPLETED", "FAILED", "NODE_FAIL", "DEADLINE"}
_GONE = {"DOWN", "NOT_RESPONDING", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"}
"""States of a node that has been lost, as `scontrol show node` has them: DOWN*, IDLE+NOT_RESPONDING."""

_WIDTH = 20
_ENDED_WITHIN_S, _REQUEUE_WITHIN_S, _ASK_EVERY_S = 600.0, 3600.0, 5.0
_TRIES, _TRY_EVERY_S = 20, 0.5


@dataclass
class Allocation:
    """Nodes that the job has been given. Methods raise `LaunchError` or `HostError`.

    Attributes:
        submission, restart: the scheduler's number, and how often it had started the job before.
        names: the nodes, in the order in which ranks are numbered; none is this machine alone.
        can_requeue: the scheduler can queue the job again under its number.
        is_given: a scheduler has given the nodes, and takes them back.
        ask_s: seconds between two questions whether nodes are lost.
    """

    submission: str
    names: tuple[str, ...] = ()
    fanout: Fanout | None = None
    restart: int = 0
    can_requeue: bool = False
    is_given: bool = False
    ask_s: float = 15.0

    def nodes(self) -> tuple[str, ...]:
        return self.names or (socket.gethostname(),)

    def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Those that do not answer, or that the scheduler has given up, with the reason."""
        others = [node for node in nodes if node not in LOCAL and self.names]
        if not others or self.fanout is None:
            return {}
        answers = self.fanout.run(others, "true", _ANSWER_S)
        gone = (Outcome.UNREACHABLE, Outcome.TIMED_OUT)
        return {host: answer.reason for host, answer in answers.items() if answer.outcome in gone}

    def address(self, node: str) -> str:
        """By which the other nodes reach it."""
        return node if self.names and node not in LOCAL else _LOOPBACK

    def still_ours(self) -> bool:
        """Whether the scheduler lets the job go on; True if it cannot be asked."""
        return True

    def queued_again(self) -> bool:
        """Whether the scheduler has queued the job again by itself: these nodes are no longer the job's."""
        return False

    def requeue(self, without: Iterable[str]) -> None:
        """Ask to be queued again, on other nodes than those; returns when that is arranged."""
        raise AssertionError("no scheduler can queue the job again")

    def drain(self, node: str, reason: str | None) -> None:
        """Take the node from all users, where there is a scheduler; give it back for None."""


class SlurmAllocation(Allocation):
    """The job that this process is part of."""

    def __init__(self, submission: str, restart: int, names: tuple[str, ...]) -> None:
        super().__init__(submission, names, None, restart, can_requeue=True, is_given=True, ask_s=5.0)

    @classmethod
    def here(cls) -> "SlurmAllocation":
        """Raises `LaunchError` outside a job, `HostError` if Slurm's commands do not work."""
        job, nodes = slurm_job(), os.environ.get("SLURM_JOB_NODELIST")
        if not job or not nodes:
            raise LaunchError("SLURM_JOB_ID is not set: this job is Slurm's; submit it with 'glmforge launch'")
        names = tuple(ask_slurm("scontrol", "show", "hostnames", nodes).split())
        return cls(job, int(os.environ.get("SLURM_RESTART_COUNT") or 0), names)

    def nodes(self) -> tuple[str, ...]:
        """Without those that Slurm has taken from the job: one that was down is not given back to it."""
        with suppress(HostError):
            listed = self._squeue("--format=%N").strip()
            left = ask_slurm("scontrol", "show", "hostnames", listed).split() if listed else []
            return tuple(name for name in self.names if name in left) or self.names
        return self.names

    def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """In one question for all."""
        found = {}
        lines = ask_slurm("scontrol", "show", "node", "--oneliner", ",".join(nodes)).splitlines() if nodes else []
        for line in lines:
            name, state = re.search(r"\bNodeName=(\S+)", line), re.search(r"\bState=(\S+)", line)
            if name is None or state is None or name[1] not in nodes:
                continue
            if set(re.split(r"[+*~#!%$@^-]", state[1])) & _GONE or "*" in state[1]:
                found[name[1]] = f"Slurm says {state[1]}"
        return found

    def address(self, node: str) -> str:
        return address_of_node(node)

    def still_ours(self) -> bool:
        """A job that is being cancelled, or over its time, is no longer `RUNNING`; one that was requeued comes back."""
        state, restarts = self._state()
        return state not in _OVER or restarts > self.restart

    def queued_again(self) -> bool:
        """A controller that was down does so when it finds that a node has lost the job's batch script meanwhile, or
        takes a node for lost that had only been cut off: the processes that run there get no signal."""
        return self._state()[1] > self.restart

    def _state(self) -> tuple[str, int]:
        """And how often Slurm has started the job again, or is about to; no state if Slurm does not answer."""
        with suppress(HostError, ValueError):
            line = self._squeue(f"--Format=State:{_WIDTH},RestartCnt:{_WIDTH}")
            if not line.strip():  # it lists no job that has ended
                return "COMPLETED", self.restart
            return line[:_WIDTH].strip(), int(line[_WIDTH : 2 * _WIDTH])
        return "", self.restart

    def requeue(self, without: Iterable[str]) -> None:
        """Returns only if the requeue did not end this process in ten minutes.

        A status that the supervisor gave by itself could arrive late and be taken for that of the next start, which
        would then count as failed. A second request would end the next start, so Slurm is asked before each whether the
        job is queued again: the answer to the last one may have been lost.
        """
        give_up = time.monotonic() + _REQUEUE_WITHIN_S
        while True:
            state, restarts = self._state()
            if restarts > self.restart or (state and _try("scontrol", "requeue", self.submission)):
                break
            if state in _OVER:  # Slurm ends it
                return
            if time.monotonic() >= give_up:
                raise LaunchError(f"job {self.submission}: 'scontrol requeue' fails; requeue it once slurmctld is up")
            time.sleep(_ASK_EVERY_S)
        # Slurm takes a list of excluded nodes of a job that waits only. If it comes too late, the next supervisor finds
        # the nodes out again.
        exclude = f"ExcNodeList={','.join(sorted(without))}"
        for _ in range(_TRIES):
            if _try("scontrol", "update", f"JobId={self.submission}", exclude):
                break
            time.sleep(_TRY_EVERY_S)
        time.sleep(_ENDED_WITHIN_S)

    def drain(self, node: str, reason: str | None) -> None:
        apply_to_node(None if reason is None else f"glmforge check: {reason}"[:200], node)

    def _squeue(self, *options: str) -> str:
        """Of this job, without the defaults of a profile. Raises `HostError`."""
        return ask_slurm("squeue", "--noheader", "--jobs", self.submission, *options, environment=asking())


def _try(*command: str) -> bool:
    try:
        ask_slurm(*command)
    except HostError:
        return False
    return True


def allocation_of(launch: LaunchConfig, fanout: Fanout) -> Allocation:
    """The nodes of a job of this launcher. Raises `LaunchError` outside the job of a scheduler."""
    if launch.launcher == "slurm" or (launch.launcher == "pbs" and "SLURM_JOB_ID" in os.environ):
        return SlurmAllocation.here()  # slurm-wlm-torque: PBS's commands in front of Slurm
    if launch.launcher == "pbs":
        number, file = os.environ.get("PBS_JOBID"), os.environ.get("PBS_NODEFILE")
        if not number or not file:
            raise LaunchError("PBS_JOBID is not set: this job is PBS's; submit it with 'glmforge launch'")
        lines = read_text(Path(file), error=LaunchError).split()  # a node stands there once for each of its slots
        return Allocation(number, tuple(expand_hosts(dict.fromkeys(lines), "PBS_NODEFILE")), fanout, is_given=True)
    return Allocation(id_of_this_process(), () if launch.launcher == "local" else host_names(launch), fanout)


def meeting_address(allocation: Allocation, nodes: Sequence[str]) -> str:
    """Where the ranks on `nodes` meet: an address of the first of them that all reach. Raises `LaunchError`.

    Where a name stands for the loopback, as that of this machine does in many an /etc/hosts, it is this machine's
    address on the route to another of the nodes.
    """
    first, *others = map(allocation.address, nodes)
    found = _address(first)
    if not others or all(_is_loopback(_address(other)) for other in others):
        return _LOOPBACK if not others or _is_loopback(found) else first
    if not _is_loopback(found):
        return found or first  # the nodes may know a name that is not known here
    own = next((own for own in map(own_address_towards, others) if own and not _is_loopback(own)), None)
    if own is None:
        raise LaunchError(f"{nodes[0]}: stands for {found}, and there is no route to {others[0]}; look at the network")
    return own


def _address(name: str) -> str:
    """IPv4 before IPv6: a cluster whose names have IPv6 addresses may well not route it. Empty if it is not known."""
    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return min((str(row[4][0]) for row in rows), key=lambda address: ":" in address)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
