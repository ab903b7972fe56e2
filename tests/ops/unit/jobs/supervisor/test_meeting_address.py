"""Where the ranks of an attempt meet: an address of the first node that the others reach."""

import socket
from collections.abc import Mapping

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.supervisor import allocation
from glmforge_ops.jobs.supervisor.allocation import Allocation, meeting_address

NAMES = {
    "node1": ["10.0.0.1"],
    "node2": ["fd00::2", "10.0.0.2"],
    "here": ["127.0.1.1"],
    "dev1": ["127.0.0.1"],
    "dev2": ["127.0.0.2"],
}


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This machine's address on the way to another; there is a route to none at first."""
    found: Mapping[str, str] = {}

    def resolve(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name not in NAMES:
            raise socket.gaierror
        return [(0, 0, 0, "", (address, 0)) for address in NAMES[name]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(allocation, "own_address_towards", lambda name: found.get(name))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("nodes", "address"),
    [
        (("node1",), "127.0.0.1"),
        (("node1", "node2"), "10.0.0.1"),
        (("node2", "node1"), "10.0.0.2"),
        (("unknown", "node1"), "unknown"),  # the nodes may know it
        (("dev1", "dev2"), "127.0.0.1"),
        (("here", "node1"), "10.0.0.99"),  # in /etc/hosts its name stands for the loopback
        (("localhost", "node1"), "10.0.0.99"),
    ],
)
def test_where_ranks_meet(routes: dict[str, str], nodes: tuple[str, ...], address: str) -> None:
    routes["node1"] = "10.0.0.99"
    NAMES["127.0.0.1"] = ["127.0.0.1"]
    assert meeting_address(Allocation("1", nodes), nodes) == address


def test_a_first_node_that_no_other_reaches(routes: dict[str, str]) -> None:
    routes["node1"] = "127.0.0.1"
    with pytest.raises(LaunchError, match=r"here: stands for 127\.0\.1\.1, and there is no route to node1"):
        meeting_address(Allocation("1", ("here", "node1")), ("here", "node1"))
