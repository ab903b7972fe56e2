"""The checks that train: their run is one that glmforge takes, and its end is judged."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.config.schema import RunConfig
from glmforge_ops.health.checks import job
from glmforge_ops.health.checks.action import Told
from glmforge_ops.health.checks.check import Context, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome
from glmforge_ops.health.checks.probes import job as job_probe
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout

WELL = {str(step): repr(6.0 - step / 10) for step in range(1, 7)}


class Nodes:
    """Answers of nodes: what each rank ends with, by run and attempt, and the losses of each run."""

    def __init__(self, **given: Any) -> None:
        self.reason: str | None = given.get("reason")
        self.status: Mapping[str, int] = given.get("status", {})
        self.losses: Mapping[str, Mapping[str, str]] = given.get("losses", {"whole": WELL, "broken": WELL})
        self.killed: bool = given.get("killed", True)
        self.asked: list[str] = []

    def ask(self, _: Session, probe: str, function: str, arguments: Mapping[str, Any], limit_s: float) -> Told:
        self.asked.append(function)
        return {host: Facts(self.answer(function, host, of_host)) for host, of_host in arguments.items()}, {}

    def answer(self, function: str, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if function == "prepare":
            return {"reason": self.reason}
        if function == "train":
            is_victim = given["victim"] == given["rank"]
            status = -9 if is_victim else self.status.get(host, 0)
            waited = status == -9 and not is_victim
            return {"status": status, "said": "so", "killed": is_victim and self.killed, "waited": waited}
        return {run: dict(self.losses[run]) for run in given.get("runs", [])}


def run(check: Any, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    monkeypatch.setattr(job, "ask_nodes", nodes.ask)
    context = Context(ClusterConfig.model_validate({"shared_path": "/shared"}), Thresholds())
    outcomes = check(Session(context, ["a", "b", "c"], Fanout(), {}))
    assert nodes.asked[-1] == "remove"
    return dict(outcomes)


def statuses(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    return {host: outcome.status.value for host, outcome in outcomes.items()}


@pytest.mark.parametrize(
    ("check", "given", "expected"),
    [
        (job.job, {}, ["pass", "pass", "pass"]),
        (job.job, {"reason": "no glmforge"}, ["fail", "skipped", "skipped"]),
        (job.job, {"status": {"b": 1}}, ["pass", "fail", "pass"]),
        (job.job, {"status": {"a": -9, "b": 1, "c": -9}}, ["skipped", "fail", "skipped"]),
        (job.job, {"losses": {"whole": {"1": "6.0"}}}, ["fail", "fail", "fail"]),
        (job.recovery, {}, ["pass", "pass", "pass"]),
        (job.recovery, {"status": {"b": 1}}, ["skipped", "skipped", "skipped"]),
        (job.recovery, {"killed": False}, ["skipped", "skipped", "fail"]),
        (job.recovery, {"losses": {"whole": WELL, "broken": WELL | {"6": "5.400001"}}}, ["fail", "fail", "fail"]),
        (job.recovery, {"losses": {"whole": WELL, "broken": {}}}, ["fail", "fail", "fail"]),
    ],
)
def test_the_end_of_a_run_is_judged(
    monkeypatch: pytest.MonkeyPatch, check: Any, given: dict[str, Any], expected: list[str]
) -> None:
    assert statuses(run(check, Nodes(**given), monkeypatch)) == dict(zip("abc", expected, strict=True))


def test_without_shared_storage_or_a_second_node_there_is_no_job() -> None:
    session = Session(Context(ClusterConfig(), Thresholds()), ["a", "b"], Fanout(), {})
    assert statuses(job.job(session)) == {"a": "skipped", "b": "skipped"}
    context = Context(ClusterConfig.model_validate({"shared_path": "/shared"}), Thresholds())
    assert statuses(job.recovery(Session(context, ["a"], Fanout(), {}))) == {"a": "skipped"}


def test_its_run_is_one_that_glmforge_takes(tmp_path: Path) -> None:
    config = RunConfig.model_validate(job_probe.settings(str(tmp_path), "whole", 3, 6))
    assert config.phases[0].batch_size % 3 == 0


def test_the_victim_is_killed_as_soon_as_there_is_a_checkpoint(tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "run": "broken", "rank": 1, "victim": 1, "seconds": 100}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        assert not job_probe.has_checkpoint(str(tmp_path / "broken"))
        (tmp_path / "broken/checkpoints/step-00000002").mkdir(parents=True)
        assert job_probe._watch(process, arguments) == (True, False)
        assert process.returncode == -9
    assert (tmp_path / "broken.killed").exists()


def test_who_waits_for_a_process_that_failed_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"folder": str(tmp_path), "run": "whole", "victim": None, "seconds": 100}
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert job_probe._watch(process, common | {"rank": 1}) == (False, False)
    monkeypatch.setattr(job_probe, "_GRACE_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        assert job_probe._watch(process, common | {"rank": 0}) == (False, True)
        process.kill()
