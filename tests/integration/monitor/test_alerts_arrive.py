"""Alerts from a real Prometheus through a real Alertmanager to a webhook, a minute of the rules in a second."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge_ops.monitor.targets import file_sd, targets_of_runs
from helpers.alert_cases import CASES
from helpers.command import Commands, write_config
from helpers.packages import install_or_skip
from helpers.played import FACTOR, Player
from helpers.prometheus_stack import Stack, answering, fetch, stack
from helpers.tiny_data import TinyData

PROGRAMS = ("prometheus", "prometheus-alertmanager")
"""Debian's packages have the same names."""
LIMIT_S = 120.0


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # asks servers that run by their own clocks; the outcome does not depend on it


@pytest.fixture(autouse=True, scope="module")
def _programs() -> None:
    install_or_skip(PROGRAMS, PROGRAMS)


FAULTS = (
    "TrainingExporterDown: killed, then taken off the list",
    "EngineDown: killed",
    "GpuXid: 79",
    "DiskFull: 2.5 % free",
)
NO_FAULTS = (
    "TrainingExporterDown: ends in order",
    "GpuXid: 31, a program's",
    "EngineDown: one scrape lost",
    "DiskFull: tmpfs",
)


def test_faults_arrive_and_are_resolved_and_what_is_no_fault_does_not(tmp_path: Path) -> None:
    chosen = [case for case in CASES if case.id in (*FAULTS, *NO_FAULTS)]
    player = Player(chosen)
    marks = {one.case.id: one.mark for one in player.played}
    with stack(tmp_path, factor=FACTOR) as servers, answering(player.answer) as port:
        player.start(at_minute=50)
        servers.set_targets(player.targets(port))

        def has_come(status: str) -> bool:
            servers.set_targets(player.targets(port))
            came = {
                value[:4] for _, of, labels in servers.webhook.received if of == status for value in labels.values()
            }
            return {marks[fault] for fault in FAULTS} <= came

        wait_until(lambda: has_come("firing"))
        wait_until(lambda: has_come("resolved"))
        reported = json.dumps(servers.webhook.received)
    assert len(marks) == len(FAULTS) + len(NO_FAULTS)
    assert [fault for fault in NO_FAULTS if f"{marks[fault]}-" in reported] == []


def test_a_page_inhibits_its_ticket_and_a_dead_run_what_it_does_not_do(tmp_path: Path) -> None:
    """Each pair is posted as Prometheus does; the second alert of each must not arrive, the third must."""
    run = {"run": "r", "stage": "sft"}
    disk = {"topic": "disk", "instance": "n1", "mountpoint": "/data"}
    sent = [
        {"alertname": "TrainingStalled", "severity": "page", "topic": "run", **run},
        {"alertname": "ThroughputLow", "severity": "ticket", "topic": "speed", **run},
        {"alertname": "ThroughputLow", "severity": "ticket", "topic": "speed", "run": "other", "stage": "sft"},
        {"alertname": "DiskFull", "severity": "page", **disk},
        {"alertname": "DiskFilling", "severity": "ticket", **disk},
        {"alertname": "DiskFilling", "severity": "ticket", **disk, "mountpoint": "/scratch"},
        {"alertname": "GpuXid", "severity": "page", "topic": "gpu", "hostname": "n1", "gpu": "0"},
        {"alertname": "GpuEccUncorrected", "severity": "ticket", "topic": "gpu", "hostname": "n1", "gpu": "0"},
        {"alertname": "GpuEccUncorrected", "severity": "ticket", "topic": "gpu", "hostname": "n1", "gpu": "1"},
    ]
    with stack(tmp_path, factor=FACTOR, rules=False) as servers:
        for severity in ("page", "ticket"):  # what inhibits has to be there first
            some = [{"labels": labels} for labels in sent if labels["severity"] == severity]
            fetch(f"{servers.alertmanager}/api/v2/alerts", json.dumps(some).encode())
        for labels in (*sent[0::3], *sent[2::3]):
            assert servers.webhook.wait("firing", LIMIT_S, **labels), labels
        found = fetch(f"{servers.alertmanager}/api/v2/alerts")
        inhibited = [one["labels"] for one in found if one["status"]["inhibitedBy"]]  # type: ignore[index, call-overload]
        assert sorted(map(sorted, inhibited)) == sorted(map(sorted, sent[1::3]))
        assert [labels for labels in sent[1::3] if servers.webhook.first("firing", **labels)] == []


def test_a_run_that_is_killed_pages_until_it_is_back_and_one_that_ends_is_silent(
    tiny_data: TinyData, tmp_path: Path, commands: Commands
) -> None:
    runs = {name: tmp_path / "runs" / name for name in ("killed", "ends")}
    phases = [{"name": "main", "steps": 1_000_000, "seq_len": 16, "batch_size": 2}]
    started = {}
    (tmp_path / "runs").mkdir()
    for name, directory in runs.items():
        config = tiny_data.run_config(directory, name=name, observe={"prometheus": {}}, phases=phases)
        started[name] = commands.start("train", write_config(config))
    for name, one in started.items():
        one.wait_for_steps(runs[name], 2)
    with stack(tmp_path, factor=6) as servers:  # Prometheus takes 5 s to see that a target is gone
        _discover(servers, tmp_path / "runs")
        wait_until(lambda: len(servers.query("run:training == 1")) == 2)
        os.kill(started["killed"].process.pid, signal.SIGKILL)
        started["ends"].interrupt()
        started["ends"].wait()
        _discover(servers, tmp_path / "runs")
        assert servers.webhook.wait("firing", LIMIT_S, alertname="TrainingExporterDown", run="killed")
        again = commands.start("train", str(runs["killed"] / "config.yaml"))
        wait_until(lambda: _discover(servers, tmp_path / "runs") and servers.webhook.first("resolved", run="killed"))
        assert again.process.poll() is None
        assert [labels for _, _, labels in servers.webhook.received if labels.get("run") == "ends"] == []


def _discover(servers: Stack, runs: Path) -> bool:
    """As `glmforge monitor targets` does."""
    found, _ = targets_of_runs([runs])
    servers.set_targets(json.loads(file_sd(found)))
    return True
