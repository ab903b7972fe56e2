"""Where the ranks of an attempt meet, as the first of their nodes sees it.

    python -P -m glmforge_ops.jobs.ranks.meeting NUMBER [OTHER_NODE ...]

prints the address that this node has on the routes to the others, and a port that is free here and promised to nobody
else. The node's own name is not looked up: in many an /etc/hosts it stands for 127.0.1.1 or ::1, which is right here
and wrong everywhere else. Nor is the first address of a name taken for the one that works: it may be of IPv6, where
only IPv4 has a route. A node that is given by an address of the loopback is on this machine, as those of a
development cluster may be.
"""

import sys

from glmforge.errors import LaunchError
from glmforge_ops.jobs.ranks.network import address_for, addresses_of, is_only_here
from glmforge_ops.jobs.ranks.ports import reserve

LOOPBACK = "127.0.0.1"


def meeting_place(number: int, others: list[str]) -> tuple[str, int]:
    """Address and port on this node.

    Args:
        number: of the job and attempt; the port is made of it.
        others: names or addresses of the other nodes. None: the loopback will do.

    Raises `LaunchError` if the others cannot be told from this machine, or no port is free.
    """
    elsewhere = [other for other in others if not other.startswith("127.")]
    return (_address_towards(elsewhere) if elsewhere else LOOPBACK), reserve(number)


def _address_towards(others: list[str]) -> str:
    address = address_for(others)
    if address is not None:
        return address
    for other in others:
        found = addresses_of(other)
        if not found:
            raise LaunchError(f"{other}: its name is not known on the job's first node; add it to DNS or /etc/hosts")
        if all(map(is_only_here, found)):
            raise LaunchError(
                f"{other}: stands for {', '.join(found)} on the job's first node, which leads nowhere else; correct "
                "/etc/hosts there"
            )
    raise LaunchError(f"{', '.join(others)}: there is no route to them from the job's first node; look at its network")


def main(arguments: list[str]) -> int:
    if not arguments or not arguments[0].isdecimal():
        print("usage: python -P -m glmforge_ops.jobs.ranks.meeting NUMBER [OTHER_NODE ...]", file=sys.stderr)
        return 1
    try:
        address, port = meeting_place(int(arguments[0]), arguments[1:])
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1
    print(address, port)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
