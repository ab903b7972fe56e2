"""Addresses and interfaces of this machine, and names that lead nowhere."""

import socket
from collections.abc import Callable

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.ranks import network
from glmforge_ops.jobs.ranks.meeting import LOOPBACK, main, meeting_place
from glmforge_ops.jobs.ranks.network import addresses_of, interface_to, is_only_here, own_address_towards


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, list[str]]], None]:
    """Has names stand for what a test says, in that order; and addresses for themselves."""

    def stand_for(table: dict[str, list[str]]) -> None:
        def look_up(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
            if name not in table and not name[0].isdigit():
                raise socket.gaierror(-2, "Name or service not known")
            return [(0, 0, 0, "", (address, port)) for address in table.get(name, [name])]

        monkeypatch.setattr(network.socket, "getaddrinfo", look_up)

    return stand_for


def test_the_loopback() -> None:
    assert own_address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("127.0.0.5") == "lo"


def test_a_name_that_is_not_known(names: Callable[[dict[str, list[str]]], None]) -> None:
    names({})
    assert addresses_of("nobody") == []
    assert interface_to("nobody") is None


def test_ipv4_comes_first(names: Callable[[dict[str, list[str]]], None]) -> None:
    names({"node": ["fd00::1", "127.0.0.1"]})
    assert addresses_of("node") == ["127.0.0.1", "fd00::1"]


@pytest.mark.parametrize(
    ("address", "only_here"),
    [
        ("127.0.1.1", True),
        ("::1", True),
        ("fe80::1%eth0", True),
        ("169.254.3.4", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("fd00::1", False),
    ],
)
def test_addresses_that_lead_nowhere_else(address: str, only_here: bool) -> None:
    assert is_only_here(address) is only_here


def test_one_node_meets_on_the_loopback() -> None:
    address, port = meeting_place(5, [])
    assert address == LOOPBACK
    assert 20_000 <= port < 30_000


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "name is not known on the job's first node"),
        ({"other": ["127.0.1.1"]}, "stands for 127.0.1.1 .* correct /etc/hosts"),
        ({"other": ["::1", "fe80::1"]}, "stands for ::1, fe80::1"),
        ({"other": ["0.1.2.3", "1::2"]}, "no route"),
    ],
)
def test_other_nodes_that_cannot_be_told(
    names: Callable[[dict[str, list[str]]], None],
    monkeypatch: pytest.MonkeyPatch,
    table: dict[str, list[str]],
    words: str,
) -> None:
    names(table)
    monkeypatch.setattr(network, "own_address_towards", lambda address: None)
    with pytest.raises(LaunchError, match=words):
        meeting_place(5, ["other"])


def test_the_address_is_that_of_the_route_to_the_others(
    names: Callable[[dict[str, list[str]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name leads to IPv6 first, where there is no route; one to the loopback; two over the same network."""
    names({"a": ["fd00::1", "10.0.0.1"], "b": ["127.0.1.1", "10.0.0.2"], "c": ["192.168.1.3"]})
    routes = {"10.0.0.1": "10.0.0.9", "10.0.0.2": "10.0.0.9", "192.168.1.3": "192.168.1.9"}
    monkeypatch.setattr(network, "own_address_towards", routes.get)
    assert meeting_place(5, ["a", "b", "c"])[0] == "10.0.0.9"


def test_nodes_that_are_all_on_this_machine() -> None:
    """Given by an address: a name that stands for the loopback is a mistake in /etc/hosts."""
    assert meeting_place(5, ["127.0.0.1", "127.0.0.1"])[0] == LOOPBACK


def test_the_command_says_what_is_wrong_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["5", "no-such-host.invalid"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["x"]) == 1
    assert main(["5"]) == 0
    assert capsys.readouterr().out.split()[0] == LOOPBACK


def test_an_own_address_that_others_cannot_reach_is_not_given_to_them(
    names: Callable[[dict[str, list[str]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names({"other": ["10.0.0.1"]})
    monkeypatch.setattr(network, "own_address_towards", lambda address: "169.254.7.7")
    with pytest.raises(LaunchError, match="no route"):
        meeting_place(5, ["other"])
