"""What the supervisor asks of where it runs: which nodes it has, which of them answer, and to be started again.

One class for each kind of place. All of them are asked the same, so that the loop knows no scheduler.
"""

import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from glmforge.errors import GlmforgeError
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.hosts.fanout import Fanout, Outcome

_ANSWER_S = 10.0


class Allocation(Protocol):
    """Nodes that the job has been given. Methods raise `LaunchError` or `HostError` with one line and the mend."""

    submission: str
    restart: int
    can_requeue: bool
    is_given: bool
    """A scheduler has given it, and takes it back."""
    ask_s: float
    """Seconds between two questions whether nodes are lost."""

    def nodes(self) -> tuple[str, ...]:
        """All of them, in the order in which ranks are to be numbered."""

    def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Those that do not answer, or that the scheduler has given up, with what was said of them."""

    def watched(self, root: Path) -> AbstractContextManager[None]:
        """Have somebody look after the supervisor of the job in `root` within the block, if its node can be lost."""

    def address(self, node: str) -> str:
        """By which the other nodes reach it."""

    def still_ours(self) -> bool:
        """Whether the scheduler lets the job go on; True if it cannot be asked."""

    def queued_again(self) -> bool:
        """Whether the scheduler has queued the job again without our asking: these nodes are no longer the job's."""

    def ends(self) -> datetime | None:
        """When the job's time is over; None if it has no limit, or that is not known."""

    def queued_s(self) -> float:
        """How long this start has waited since the job was queued again, by the scheduler's clock; 0 if not known."""

    def requeue(self, without: Iterable[str]) -> None:
        """Ask to be queued again, on other nodes than those; comes back when that is arranged."""

    def idle(self) -> tuple[str, ...]:
        """Nodes outside the allocation that a requeue might bring; none while other jobs wait for nodes."""

    def drain(self, node: str, reason: str) -> None:
        """Take the node from all users."""

    def undrain(self, node: str) -> None:
        """Give back a node that we have taken."""


def ask_lost(allocation: Allocation, nodes: Sequence[str]) -> tuple[Mapping[str, str], str]:
    """Which nodes are lost, as far as that can be asked now; else none, and why it cannot."""
    try:
        return allocation.lost(nodes), ""
    except GlmforgeError as error:
        return {}, str(error)


@dataclass
class Here:
    """This machine, or hosts that are reached through ssh: nobody gives them or takes them back.

    Attributes:
        hosts: none is this machine alone.
    """

    submission: str
    hosts: tuple[str, ...] = ()
    fanout: Fanout | None = None
    restart: int = 0
    can_requeue: bool = False
    is_given: bool = False
    ask_s: float = 15.0

    def nodes(self) -> tuple[str, ...]:
        return self.hosts or (socket.gethostname(),)

    def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
        others = [node for node in nodes if node not in LOCAL and self.hosts]
        if not others or self.fanout is None:
            return {}
        answers = self.fanout.run(others, "true", _ANSWER_S)
        gone = (Outcome.UNREACHABLE, Outcome.TIMED_OUT)
        return {host: answer.reason for host, answer in answers.items() if answer.outcome in gone}

    def watched(self, root: Path) -> AbstractContextManager[None]:
        return nullcontext()

    def address(self, node: str) -> str:
        return node if self.hosts and node not in LOCAL else "127.0.0.1"

    def still_ours(self) -> bool:
        return True

    def queued_again(self) -> bool:
        return False

    def ends(self) -> datetime | None:
        return None

    def queued_s(self) -> float:
        return 0.0

    def requeue(self, without: Iterable[str]) -> None:
        raise AssertionError("there is nobody to queue the job again")

    def idle(self) -> tuple[str, ...]:
        return ()

    def drain(self, node: str, reason: str) -> None:
        """There is no scheduler that could be told."""

    def undrain(self, node: str) -> None:
        """There is no scheduler that could be told."""
