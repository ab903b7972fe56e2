"""Where a job runs: which nodes it has, which of them answer, and whether it can be queued again.

One class for each kind of place; all are asked the same, so that the loop knows no scheduler. `SlurmAllocation` has a
file of its own.
"""

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from glmforge.errors import LaunchError
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.hosts.fanout import Fanout, Outcome
from glmforge_ops.jobs.ranks.variables import own_address_towards

_ANSWER_S = 10.0
_LOOPBACK = "127.0.0.1"


class Allocation(Protocol):
    """Nodes that the job has been given. Methods raise `LaunchError` or `HostError`.

    Attributes:
        submission, restart: the scheduler's number, and how often it had started the job before.
        can_requeue: the scheduler can queue the job again under its number.
        is_given: a scheduler has given the nodes, and takes them back.
        ask_s: seconds between two questions whether nodes are lost.
    """

    submission: str
    restart: int
    can_requeue: bool
    is_given: bool
    ask_s: float

    def nodes(self) -> tuple[str, ...]:
        """All of them, in the order in which ranks are to be numbered."""

    def lost(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Those that do not answer, or that the scheduler has given up, with the reason."""

    def address(self, node: str) -> str:
        """By which the other nodes reach it."""

    def still_ours(self) -> bool:
        """Whether the scheduler lets the job go on; True if it cannot be asked."""

    def queued_again(self) -> bool:
        """Whether the scheduler has queued the job again without our asking: these nodes are no longer the job's."""

    def ends(self) -> datetime | None:
        """When the job's time is over; None if it has no limit, or that is not known."""

    def requeue(self, without: Iterable[str]) -> None:
        """Ask to be queued again, on other nodes than those; comes back when that is arranged."""

    def drain(self, node: str, reason: str | None) -> None:
        """Take the node from all users; give it back for None."""


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

    def address(self, node: str) -> str:
        return node if self.hosts and node not in LOCAL else _LOOPBACK

    def still_ours(self) -> bool:
        return True

    def queued_again(self) -> bool:
        return False

    def ends(self) -> datetime | None:
        return None

    def requeue(self, without: Iterable[str]) -> None:
        raise AssertionError("there is nobody to queue the job again")

    def drain(self, node: str, reason: str | None) -> None:
        """There is no scheduler that could be told."""


def meeting_address(allocation: Allocation, nodes: Sequence[str]) -> str:
    """Where the ranks on `nodes` meet: an address of the first of them that all reach. Raises `LaunchError`.

    Where a name leads to the loopback, as that of this machine does in many an /etc/hosts, it is this machine's address
    on the route to another of the nodes.
    """
    first, *others = map(allocation.address, nodes)
    found = _addresses(first)
    if not others or all(map(_is_loopback, map(_first_address, others))):
        return _LOOPBACK if not others or _is_loopback(_first_address(first)) else first
    if found and not _is_loopback(found[0]):
        return found[0]
    if not found:
        return first  # the nodes may know a name that is not known here
    for other in others:
        own = own_address_towards(other)
        if own is not None and not _is_loopback(own):
            return own
    raise LaunchError(f"{nodes[0]}: stands for {found[0]}, and there is no route to {others[0]}; look at the network")


def _addresses(name: str) -> list[str]:
    """IP addresses of a name, those of IPv4 first: a cluster whose names have IPv6 addresses may well not route it."""
    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted(dict.fromkeys(str(row[4][0]) for row in rows), key=lambda address: ":" in address)


def _first_address(name: str) -> str:
    return next(iter(_addresses(name)), name)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
