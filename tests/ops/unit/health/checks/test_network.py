"""Checks of the network, at the probe's boundary and between listeners on this machine."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks import connections, network
from glmforge_ops.health.checks.action import Told
from glmforge_ops.health.checks.check import Context, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome
from glmforge_ops.health.checks.probes import connections as connections_probe
from glmforge_ops.health.checks.probes import network as network_probe
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout

CONTEXT = Context(ClusterConfig(), Thresholds())


def session(hosts: list[str], **facts: Facts) -> Session:
    return Session(CONTEXT, hosts, Fanout(), {host: {"network": of_host} for host, of_host in facts.items()})


def statuses(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    return {host: outcome.status.value for host, outcome in outcomes.items()}


def interface(**changes: Any) -> Facts:
    found: dict[str, Any] = {"interface": "eth0", "there": True, "up": True, "address": "10.0.0.1", "speed": 25_000}
    found |= {"mtu": 9000, "is_virtual": False, "ephemeral": ["32768", "60999"], "rx_errors": 0, "tx_errors": 0}
    return Facts(found | {"rx_dropped": 5, "tx_dropped": 0, "rx_packets": 1e7, "tx_packets": 1e7} | changes)


@pytest.mark.parametrize(
    ("judge", "changes", "status", "said"),
    [
        (network.link, {}, "pass", "eth0 10.0.0.1, 25 Gbit/s"),
        (network.link, {"speed": -1}, "pass", "eth0 10.0.0.1"),
        (network.link, {"interface": None}, "fail", "no interface"),
        (network.link, {"there": False}, "fail", "eth0 is not there"),
        (network.link, {"up": False}, "fail", "eth0 is down"),
        (network.link, {"address": None}, "fail", "no IPv4 address"),
        (network.errors, {}, "pass", "0 errors, 5 drops"),
        (network.errors, {"rx_errors": 21}, "warning", "21 errors"),
        (network.errors, {"rx_errors": 19}, "pass", "19 errors"),
        (network.errors, {"rx_packets": 0, "tx_packets": 0, "rx_errors": None}, "pass", "0 errors"),
        (network.ephemeral, {}, "pass", "32768 to 60999"),
        (network.ephemeral, {"ephemeral": ["50000", "60999"]}, "warning", "50000 to 60999"),
        (network.ephemeral, {"ephemeral": ["1024", "60999"]}, "warning", "master_port 29500 lies in it"),
        (network.ephemeral, {"ephemeral": []}, "skipped", "does not say"),
    ],
)
def test_an_interface_is_judged(judge: Any, changes: dict[str, Any], status: str, said: str) -> None:
    outcome = judge(interface(**changes), CONTEXT)
    assert (outcome.status.value, said in outcome.value) == (status, True), outcome


def test_the_node_with_another_mtu_or_speed_is_named() -> None:
    nodes = {"a": interface(), "b": interface(), "c": interface(mtu=1500, speed=10_000), "d": interface(speed=-1)}
    assert statuses(network.mtu(nodes, CONTEXT)) == {"a": "pass", "b": "pass", "c": "fail", "d": "pass"}
    assert statuses(network.link_speed(nodes, CONTEXT)) == {"a": "pass", "b": "pass", "c": "fail", "d": "skipped"}


def names_told(**of_nodes: dict[str, Any]) -> Told:
    return {host: Facts(found) for host, found in of_nodes.items()}, {}


def known(own: str, **changes: Any) -> dict[str, Any]:
    names = {"a": ["10.0.0.1"], "b": ["10.0.0.2"], "c": ["10.0.0.3"]} | changes
    return {"names": names, "hostname": own, "own": names[own]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"c": ["127.0.1.1"]}, "c is 127.0.1.1 there: that is itself"),
        ({"c": ["::1", "10.0.0.3"]}, "c is ::1 there: that is itself"),
        ({"c": ["fe80::1%eth0"]}, "one link only"),
        ({"a": None}, "a is not known there"),
        ({"b": ["10.9.9.9"]}, "b is 10.9.9.9 there"),
    ],
)
def test_a_node_that_knows_a_name_wrongly_fails_alone(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    told = names_told(a=known("a"), b=known("b"), c=known("c", **changes))
    monkeypatch.setattr(network, "ask_nodes", lambda *arguments: told)
    outcomes = network.names(session(["a", "b", "c"]))
    assert statuses(outcomes) == {"a": "pass", "b": "pass", "c": "fail"}
    assert said in outcomes["c"].value


def test_names_that_are_right_pass_and_are_few_for_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Mapping[str, Any]] = {}

    def ask(_: Session, probe: str, function: str, arguments: Mapping[str, Any], limit_s: float) -> Told:
        asked.update(arguments)
        return {}, {}

    monkeypatch.setattr(network, "ask_nodes", ask)
    network.names(session([f"root@n{number}" for number in range(100)]))
    assert asked["root@n7"]["names"] == ["n0", "n6", "n7", "n8"]
    assert asked["root@n0"]["names"] == ["n0", "n99", "n1"]


def rates_of(**rates: float) -> Callable[..., Told]:
    """What each node measures, in Gbit/s."""

    def ask(_: Session, probe: str, function: str, arguments: Mapping[str, Any], limit_s: float) -> Told:
        if function == "send":
            found = {host: {"rate": 1e9 / 8 * rates[host], "best": 0.0, "reason": None} for host in arguments}
        else:
            found = {host: {"address": "10.0.0.1", "port": 1, "pid": 1, "began": "1"} for host in arguments}
        return {host: Facts(of_host) for host, of_host in found.items()}, {}

    return ask


@pytest.mark.parametrize(
    ("rates", "failing"),
    [
        ({"a": 9, "b": 9, "c": 9, "d": 9}, set()),
        ({"a": 9, "b": 5, "c": 4, "d": 9}, set()),
        ({"a": 9, "b": 0.1, "c": 0.1, "d": 9}, {"c"}),  # from b and to d: c's link
        ({"a": 0.1, "b": 9, "c": 9, "d": 0.1}, {"a"}),
        ({"a": 9, "b": 0.1, "c": 9, "d": 9}, {"b"}),  # one direction: who sends
        ({"a": 0.1, "b": 0.1, "c": 9}, {"b"}),
        ({"a": 0.1, "b": 0.1, "c": 0.1, "d": 9, "e": 9, "f": 9, "g": 9}, {"b", "c"}),  # both of two neighbours
    ],
)
def test_the_node_behind_slow_pairs_is_named(
    monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], failing: set[str]
) -> None:
    monkeypatch.setattr(connections, "ask_nodes", rates_of(**rates))
    outcomes = connections.bandwidth(session(list(rates)))
    assert {host for host, outcome in outcomes.items() if outcome.status == "fail"} == failing


def test_all_links_can_be_slow_for_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ask_nodes", rates_of(a=0.5, b=0.5))
    fast = session(["a", "b"], a=interface(), b=interface())
    assert statuses(connections.bandwidth(fast)) == {"a": "fail", "b": "fail"}
    gigabit = session(["a", "b"], a=interface(speed=1000), b=interface(is_virtual=True))
    assert statuses(connections.bandwidth(gigabit)) == {"a": "pass", "b": "pass"}


def arguments(port: int, token: str = "right") -> dict[str, Any]:
    return {"address": "127.0.0.1", "port": port, "token": token, "peer": None, "seconds": 60}


def on_loopback() -> dict[str, Any]:
    return ClusterConfig(interface="lo").model_dump(mode="json")


def test_a_listener_answers_counts_echoes_and_ends() -> None:
    found = connections_probe.listen(on_loopback(), arguments(0))
    try:
        where = arguments(found["port"])
        assert connections_probe.connect({}, where) == {"reached": True, "right": True, "reason": None}
        assert connections_probe.connect({}, where | {"token": "other"})["right"] is False
        sent = connections_probe.send({}, where | {"seconds": 0.3, "start_at": 0.0, "wait_s": 0.0})
        assert sent["rate"] > 0
        trip = connections_probe.trip({}, where)
        assert 0 < trip["least"] <= trip["median"]
        assert connections_probe.listen(on_loopback(), where)["in_use"] is True
        assert connections_probe.stop({}, {"pid": os.getpid(), "began": found["began"]}) == {"ended": False}
    finally:
        assert connections_probe.stop({}, found) == {"ended": True}
        os.waitpid(found["pid"], 0)
    assert connections_probe.connect({}, where)["reached"] is False
    assert connections_probe.trip({}, where)["least"] is None
    assert connections_probe.send({}, where | {"seconds": 0.1, "start_at": 0.0, "wait_s": 0.0})["best"] is None


def test_another_program_on_the_masters_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"port": None, "in_use": True, "reason": "Address already in use", "address": "10.0.0.1", "pid": None}
    monkeypatch.setattr(connections, "ask_nodes", lambda *_: ({"a": Facts(taken)}, {}))
    outcomes = connections.master_port(session(["a", "b"]))
    assert statuses(outcomes) == {"a": "fail", "b": "skipped"}
    assert "29500 is taken" in outcomes["a"].value


@pytest.mark.parametrize(
    ("reached", "failing"),
    [({"b": True, "c": True}, set()), ({"b": True, "c": False}, {"c"}), ({"b": False, "c": False}, {"a"})],
)
def test_who_does_not_reach_the_master_is_named(
    monkeypatch: pytest.MonkeyPatch, reached: dict[str, bool], failing: set[str]
) -> None:
    def ask(_: Session, probe: str, function: str, asked: Mapping[str, Any], limit_s: float) -> Told:
        if function == "connect":
            return {h: Facts({"reached": reached[h], "right": True, "reason": "no answer"}) for h in asked}, {}
        return {h: Facts({"port": 29500, "address": "10.0.0.1", "pid": None, "began": None}) for h in asked}, {}

    monkeypatch.setattr(connections, "ask_nodes", ask)
    outcomes = connections.master_port(session(["a", "b", "c"]))
    assert {host for host, outcome in outcomes.items() if outcome.status == "fail"} == failing


def test_this_machine_has_an_interface_or_says_so() -> None:
    found = network_probe.gather(on_loopback())
    assert (found["there"], found["address"], found["up"]) == (True, "127.0.0.1", True)
    assert network_probe.gather(ClusterConfig(interface="no-such0").model_dump(mode="json"))["there"] is False
    assert network_probe.resolve({}, {"names": ["localhost", "no.such.invalid"]})["names"]["no.such.invalid"] is None
    assert network_probe.interface_to("127.0.0.1") != "lo"
    with socket.socket() as listener:  # a port that nobody serves
        listener.bind(("127.0.0.1", 0))
        assert connections_probe.connect({}, arguments(listener.getsockname()[1]))["reached"] is False
