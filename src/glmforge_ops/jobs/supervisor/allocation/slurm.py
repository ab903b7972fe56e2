"""The allocation of a Slurm job, asked through Slurm's own commands by the supervisor inside it.

The controller may be down for a while, as every server is: whatever it does not answer counts as unchanged.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from glmforge.errors import HostError, LaunchError
from glmforge.runtime.slurm import address_of_node
from glmforge_ops.health.checks.drain import apply_to_node
from glmforge_ops.hosts.machines import ask_slurm
from glmforge_ops.jobs.schedulers.base import asking
from glmforge_ops.jobs.script.amounts import seconds
from glmforge_ops.jobs.supervisor.allocation.lost_nodes import lost_nodes
from glmforge_ops.jobs.supervisor.allocation.standby import standby

_OVER = {"COMPLETING", "CANCELLED", "TIMEOUT", "PREEMPTED", "COMPLETED", "FAILED", "NODE_FAIL", "DEADLINE"}
_WIDTH = 20
_ENDED_WITHIN_S = 600.0
_ASK_EVERY_S = 5.0
_REQUEUE_WITHIN_S = 3600.0
"""What else could be done while Slurm's controller is down?"""
_TRIES, _TRY_EVERY_S = 20, 0.5


@dataclass
class SlurmAllocation:
    """The job that this process is part of."""

    submission: str
    restart: int
    names: tuple[str, ...]
    can_requeue: bool = True
    is_given: bool = True
    ask_s: float = 5.0
    _drained: set[str] = field(default_factory=set)

    @classmethod
    def here(cls) -> "SlurmAllocation":
        """Raises `LaunchError` outside a job, `HostError` if Slurm's commands do not work."""
        job, nodes = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NODELIST")
        if not job or not nodes:
            raise LaunchError("SLURM_JOB_ID is not set: this job is Slurm's; submit it with 'glmforge launch'")
        task, array = os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("SLURM_ARRAY_JOB_ID")
        names = tuple(ask_slurm("scontrol", "show", "hostnames", nodes).split())
        submission = f"{array}_{task}" if array and task else job
        return cls(submission, int(os.environ.get("SLURM_RESTART_COUNT") or 0), names)

    def nodes(self) -> tuple[str, ...]:
        """Without those that Slurm has taken from the job: one that was down is not given back to it."""
        with suppress(HostError):
            listed = _squeue("--jobs", self.submission, "--format", "%N").strip()
            left = ask_slurm("scontrol", "show", "hostnames", listed).split() if listed else []
            return tuple(name for name in self.names if name in left) or self.names
        return self.names

    def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
        return lost_nodes(nodes)

    def watched(self, root: Path) -> AbstractContextManager[None]:
        return standby(root, self.names, self.nodes)

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
            form = f"--Format=State:{_WIDTH},RestartCnt:{_WIDTH}"
            line = _squeue("--jobs", self.submission, form)
            if not line.strip():  # it lists no job that has ended
                return "COMPLETED", self.restart
            return line[:_WIDTH].strip(), int(line[_WIDTH : 2 * _WIDTH])
        return "", self.restart

    def ends(self) -> datetime | None:
        """Its beginning and its limit: the end that Slurm tells (%e) is nearer for a job that is being preempted."""
        with suppress(HostError, ValueError, OverflowError, OSError):
            began, limit = _squeue("--jobs", self.submission, "--format", "%S %l").split()
            return datetime.fromtimestamp(float(began) + seconds(limit), UTC)
        return None

    def queued_s(self) -> float:
        with suppress(HostError, ValueError):  # "N/A" of what has not been
            queued, started = self._times("%V %S")
            return max(0.0, started - queued) if self.restart else 0.0
        return 0.0

    def _times(self, form: str) -> list[float]:
        """In seconds since 1970: in local time, as Slurm tells it else, an hour may be missing or be there twice."""
        return [float(text) for text in _squeue("--jobs", self.submission, "--format", form).split()]

    def requeue(self, without: Iterable[str]) -> None:
        """Comes back only if the requeue did not end this process in ten minutes.

        A status that the supervisor gave by itself could arrive late and be taken for that of the next start, which
        would then count as failed. So it waits to be ended, whoever has requeued the job.

        A second request would end the next start. So Slurm is asked before each whether the job is queued again: the
        answer to the last one may have been lost, and this node cut off for a while.
        """
        give_up = time.monotonic() + _REQUEUE_WITHIN_S
        while True:
            state, restarts = self._state()
            if restarts > self.restart or (state and self._try("scontrol", "requeue", self.submission)):
                break
            if state in _OVER:  # Slurm ends it
                return
            if time.monotonic() >= give_up:
                raise LaunchError(
                    f"job {self.submission}: 'scontrol requeue' fails; is slurmctld up? Requeue it by hand"
                )
            time.sleep(_ASK_EVERY_S)
        self._leave_out(without)
        time.sleep(_ENDED_WITHIN_S)

    def idle(self) -> tuple[str, ...]:
        """Of the job's partition. Whether they have the features that the job asks for is Slurm's to say."""
        partition = os.environ.get("SLURM_JOB_PARTITION", "")
        with suppress(HostError):
            waiting = _squeue("--states=PENDING", f"--partition={partition}", "--format", "%r")
            if not {"Resources", "Priority"} & set(waiting.split()):
                options = ["--noheader", "--Node", "--responding", "--states=idle", f"--partition={partition}"]
                idle = ask_slurm("sinfo", *options, "--format=%N", environment=asking())
                return tuple(dict.fromkeys(idle.split()))
        return ()

    def _leave_out(self, nodes: Iterable[str]) -> None:
        """From the next start, these and no others.

        Slurm takes that of a job that waits only: after the requeue, while this process has not been ended yet. If it
        comes too late, the next supervisor finds the nodes out again.
        """
        for _ in range(_TRIES):
            if self._try("scontrol", "update", f"JobId={self.submission}", f"ExcNodeList={','.join(sorted(nodes))}"):
                return
            time.sleep(_TRY_EVERY_S)

    def drain(self, node: str, reason: str) -> None:
        apply_to_node(f"glmforge check: {reason}"[:200], node)

    def undrain(self, node: str) -> None:
        apply_to_node(None, node)

    def _try(self, *command: str) -> bool:
        try:
            ask_slurm(*command)
        except HostError:
            return False
        return True


def _squeue(*options: str) -> str:
    """Of all that there is, whatever a profile has squeue leave out; times as seconds. Raises `HostError`."""
    return ask_slurm("squeue", "--noheader", *options, environment=asking())
