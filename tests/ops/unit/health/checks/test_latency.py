"""Latency between neighbours: `ib_write_lat` is a program of the test's own that prints recorded output."""

import os
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.runtime.ssh import Ssh
from glmforge_ops.health.checks.check import Context, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.latency import latency, rounds
from glmforge_ops.health.checks.outcome import Outcome
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout

HOSTS = [f"n{index}" for index in range(5)]
RESULT = """---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 8       1000          {least}           5.87         {typical}                1.03               0.05
---------------------------------------------------------------------------------------"""


def answers(tmp_path: Path, tool: str | None, layer: str = "InfiniBand", at_once: int = 8) -> dict[str, Outcome]:
    directory = tmp_path / "bin"
    directory.mkdir()
    ssh = directory / "fake-ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n')
    ssh.chmod(0o755)
    if tool is not None:
        program = directory / "ib_write_lat"
        # With a host at the end it asks that one; without, it waits to be asked.
        program.write_text(f'#!/bin/sh\nfor last; do :; done\ncase "$last" in\n{tool}\n1000) exit 0;;\nesac\n')
        program.chmod(0o755)
    fanout = Fanout(Ssh((str(ssh),)), at_once, {"PATH": f"{directory}:{os.environ['PATH']}"})
    port = {"device": "mlx5_0", "port": "1", "layer": layer, "state": "ACTIVE"}
    facts = {host: {"infiniband": Facts({"ports": [port]})} for host in HOSTS}
    return dict(latency(Session(Context(ClusterConfig(), Thresholds()), HOSTS, fanout, facts)))


def says(typical: float) -> str:
    return f"cat <<'END'\n{RESULT.format(least=typical - 0.1, typical=typical)}\nEND\n;;"


def test_a_slow_neighbour_is_named_and_the_others_pass(tmp_path: Path) -> None:
    outcomes = answers(tmp_path, f"n3) {says(3.4)}\nn*) {says(1.02)}")
    assert {host: outcome.status.value for host, outcome in outcomes.items()} == {
        **dict.fromkeys(HOSTS, "pass"),
        "n2": "fail",
    }
    assert outcomes["n2"].value == "3.4 us to n3"
    assert outcomes["n4"].value == "1.02 us to n0"


def test_ethernet_may_take_longer(tmp_path: Path) -> None:
    outcomes = answers(tmp_path, f"n*) {says(3.4)}", layer="Ethernet")
    assert {outcome.status.value for outcome in outcomes.values()} == {"pass"}


def test_without_the_tool_nothing_is_known(tmp_path: Path) -> None:
    assert {outcome.value for outcome in answers(tmp_path, None).values()} == {"ib_write_lat is not there"}


def test_one_that_is_asked_alone_cannot_be_measured(tmp_path: Path) -> None:
    assert {outcome.status.value for outcome in answers(tmp_path, "", at_once=1).values()} == {"skipped"}


@pytest.mark.parametrize("number", [2, 3, 4, 7, 8])
def test_no_host_is_in_two_pairs_of_a_round(number: int) -> None:
    hosts = [f"n{index}" for index in range(number)]
    chosen = rounds(hosts)
    assert len(chosen) == 2 + number % 2
    for pairs in chosen:
        used = [host for pair in pairs for host in pair]
        assert len(set(used)) == len(used)
    assert sorted(pair for pairs in chosen for pair in pairs) == sorted(
        (host, hosts[(index + 1) % number]) for index, host in enumerate(hosts)
    )
