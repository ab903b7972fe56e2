"""The allocation of a Slurm job, asked through Slurm's own commands by the supervisor inside it.

The controller may be down for a while, as every server is: whatever it does not answer counts as unchanged.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from glmforge.errors import HostError, LaunchError
from glmforge.runtime.launch import address_of_node
from glmforge_ops.health.checks.drain import apply_to_node
from glmforge_ops.hosts.machines import ask_slurm
from glmforge_ops.jobs.ranks.variables import slurm_job
from glmforge_ops.jobs.schedulers.base import asking
from glmforge_ops.jobs.script.amounts import seconds

_OVER = {"COMPLETING", "CANCELLED", "TIMEOUT", "PREEMPTED", "COMPLETED", "FAILED", "NODE_FAIL", "DEADLINE"}
_GONE = {"DOWN", "NOT_RESPONDING", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"}
"""States of a node that has been lost, as `scontrol show node` tells them: DOWN*, IDLE+NOT_RESPONDING."""

_WIDTH = 20
_ENDED_WITHIN_S = 600.0
_ASK_EVERY_S = 5.0
_REQUEUE_WITHIN_S = 3600.0
"""What else could be done while Slurm's controller is down?"""
_TRIES, _TRY_EVERY_S = 20, 0.5


@dataclass
class SlurmAllocation:
    """The job that this process is part of (`Allocation`)."""

    submission: str
    restart: int
    names: tuple[str, ...]
    can_requeue: bool = True
    is_given: bool = True
    ask_s: float = 5.0

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
        if not nodes:
            return {}
        found = {}
        for line in ask_slurm("scontrol", "show", "node", "--oneliner", ",".join(nodes)).splitlines():
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
        takes a node for lost that had only been cut off: nobody tells the processes that run there."""
        return self._state()[1] > self.restart

    def _state(self) -> tuple[str, int]:
        """And how often Slurm has started the job again, or is about to; no state if Slurm does not answer."""
        with suppress(HostError, ValueError):
            line = self._squeue(f"--Format=State:{_WIDTH},RestartCnt:{_WIDTH}")
            if not line.strip():  # it lists no job that has ended
                return "COMPLETED", self.restart
            return line[:_WIDTH].strip(), int(line[_WIDTH : 2 * _WIDTH])
        return "", self.restart

    def ends(self) -> datetime | None:
        """Its beginning and its limit: the end that Slurm tells (%e) is nearer for a job that is being preempted."""
        with suppress(HostError, ValueError, OverflowError, OSError):
            began, limit = self._squeue("--format=%S %l").split()
            return datetime.fromtimestamp(float(began) + seconds(limit), UTC)
        return None

    def requeue(self, without: Iterable[str]) -> None:
        """Comes back only if the requeue did not end this process in ten minutes.

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
        """Of this job, whatever a profile has squeue leave out; times as seconds. Raises `HostError`."""
        return ask_slurm("squeue", "--noheader", "--jobs", self.submission, *options, environment=asking())


def _try(*command: str) -> bool:
    try:
        ask_slurm(*command)
    except HostError:
        return False
    return True
