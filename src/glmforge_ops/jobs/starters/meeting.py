"""Where the ranks of an attempt meet: an address of the first node that all nodes reach, and a port that is free there.

Found out by the first node itself (`jobs.ranks.meeting`): it alone knows its interfaces and its free ports.
"""

import ipaddress
import sys
from collections.abc import Callable, Sequence

from glmforge.errors import LaunchError
from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import last_line
from glmforge_ops.jobs.ranks.meeting import meeting_place
from glmforge_ops.jobs.ranks.network import address_for
from glmforge_ops.jobs.starters.base import Starter

MOST_ASKED = 8
"""Other nodes that the first one looks for a route to."""


def find_meeting_place(
    starter: Starter, nodes: Sequence[str], number: int, *, address_of: Callable[[str], str] = str
) -> tuple[str, int]:
    """Address and port where ranks on `nodes` meet. The first of them is asked in the way in which ranks are started.

    Args:
        number: of the job and attempt; the port is made of it.
        address_of: by which nodes reach one another.

    Raises `LaunchError` if the first node cannot be asked, or has no route to the others.
    """
    first, *others = nodes
    if first in LOCAL and not others:
        return meeting_place(number, [])
    some = others[:: max(1, len(others) // MOST_ASKED)][:MOST_ASKED]
    words = [
        "-P",
        "-m",
        "glmforge_ops.jobs.ranks.meeting",
        str(number),
        *(_seen_by(first, each, address_of) for each in some),
    ]
    return _parsed(first, starter.ask(first, [sys.executable, *words]))


def _seen_by(first: str, other: str, address_of: Callable[[str], str]) -> str:
    """This machine goes by names that mean another one there: then its address on the route to the first node."""
    if other not in LOCAL:
        return address_of(other)
    own = address_for([address_of(first)])
    if own is None:
        raise LaunchError(
            f"{first}: there is no route to it from this machine, which is to be the next node; look at the network"
        )
    return own


def _parsed(node: str, answer: str) -> tuple[str, int]:
    """What a shell's start-up files print comes before."""
    words = answer.split()[-2:]
    try:
        address, port = words
        return str(ipaddress.ip_address(address)), int(port)
    except ValueError:
        raise LaunchError(
            f"{node}: answers {last_line(answer)!r} instead of an address and a port; is it the same glmforge?"
        ) from None
