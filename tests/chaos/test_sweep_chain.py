"""Sweeps and chains under a real Slurm: an array of eight runs, and stages of which some are cancelled or requeued."""

import csv
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import dump_config
from glmforge.observe.record_files import read_jsonl
from helpers.dev_cluster import Cluster, slurm_cluster
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

LIMIT_S = 900.0
AT_ONCE = 3
PATIENCE = ["fault_tolerance.hang_timeout_s=600", "parallel.process_group_timeout_s=900"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as cluster:
        yield cluster


@dataclass(frozen=True)
class Work:
    """Our commands in a directory, on a cluster."""

    cluster: Cluster
    directory: Path

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = self.cluster.environment | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "glmforge", *words]
        return subprocess.run(command, cwd=self.directory, env=environment, capture_output=True, text=True)

    def run(self, *words: str) -> str:
        """Output of a command that must succeed."""
        done = self.ask(*words)
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def until(self, reached: Callable[[], bool], told: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < deadline, f"not reached in {LIMIT_S:g} s: {told()}"
            time.sleep(0.5)  # looks at what other processes have done; the outcome does not depend on it

    def sweep(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run("sweep", "show", "lr", "--json", "--sort", "task"))
        return rows

    def chain(self) -> dict[str, dict[str, Any]]:
        return {row["stage"]: row for row in json.loads(self.run("chain", "show", "life", "--json"))}

    def num_attempts(self, job: str) -> int:
        return len(list((self.directory / "jobs" / job / "attempts").glob("*/attempt.json")))

    def states(self, *options: str) -> list[str]:
        """Of Slurm's jobs and tasks."""
        return self.cluster.run("squeue", "--noheader", "--array", "--format=%T", *options).split()


@pytest.fixture
def work(cluster: Cluster, tmp_path: Path) -> Work:
    return Work(cluster, tmp_path)


def write_run(data: TinyData, directory: Path, num_steps: int) -> None:
    config = data.run_config(
        Path("runs/tiny"),
        phases=[{"name": "main", "steps": num_steps, "seq_len": 32, "batch_size": 8}],
        checkpoint={"every_steps": 4},
        observe={"progress": False, "tensorboard": False, "evaluate_every": 5},
    )
    (directory / "tiny.yaml").write_text(dump_config(config))


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in read_jsonl(run / "metrics.jsonl")]


def test_an_array_of_eight_with_a_throttle_and_a_table(work: Work, tiny_data: TinyData) -> None:
    write_run(tiny_data, work.directory, num_steps=10)
    options = ["--launcher", "slurm", "--name", "lr", "--cpus-per-task", "1", "--at-once", str(AT_ONCE)]
    work.run("launch", "tiny.yaml", *PATIENCE, *options, "--sweep", "optim.lr=log(1e-3,3e-2,4)", "--sweep", "seed=1,2")
    most = 0

    def is_over() -> bool:
        nonlocal most
        most = max(most, work.states("--states=R").count("RUNNING"))
        return not work.states()

    work.until(is_over, work.states)
    requeued_when_it_has_finished(work, "lr-007")
    rows = work.sweep()
    assert [row["state"] for row in rows] == ["finished"] * 8, rows
    assert 1 < most <= AT_ONCE
    assert [row["step"] for row in rows] == [10] * 8
    assert len({row["loss"] for row in rows}) == 8
    assert all(row["held_out"] < 9 and row["tokens_per_second"] > 0 for row in rows)
    assert [row["settings"]["seed"] for row in rows] == [1, 2] * 4

    table = list(csv.DictReader(io.StringIO(work.run("sweep", "show", "lr", "--csv", "--sort", "held_out"))))
    assert [float(row["held_out"]) for row in table] == sorted(row["held_out"] for row in rows)
    work.run("sweep", "page", "lr", "--out", "lr.html")
    assert "lr-007" in (work.directory / "lr.html").read_text()

    assert "nothing is left" in work.ask("sweep", "resubmit", "lr").stderr
    is_a_run_like_any_other(work, rows[5])


def is_a_run_like_any_other(work: Work, row: dict[str, Any]) -> None:
    """Bit for bit what 'glmforge train' gives with the same settings."""
    settings = [f"{key}={value}" for key, value in row["settings"].items()]
    work.run("train", "tiny.yaml", *settings, "name=alone", "output_dir=runs/alone")
    assert losses(work.directory / "runs" / "alone") == losses(work.directory / "runs" / row["job"])


def requeued_when_it_has_finished(work: Work, name: str) -> None:
    """A task that is started again though its run has finished does nothing. (Slurm soon forgets those that ended.)"""
    number = read_jsonl(work.directory / "jobs" / name / "submissions.jsonl")[-1]["id"]
    work.cluster.run("scontrol", "requeue", number)
    work.cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now+2")
    log = work.directory / "jobs" / "lr" / f"scheduler-{number}.log"
    work.until(lambda: f"{name}: has finished already" in log.read_text(), log.read_text)
    work.until(lambda: not work.states(), work.states)
    assert work.num_attempts(name) == 1


def test_points_that_were_cancelled_are_submitted_again_and_no_others(work: Work, tiny_data: TinyData) -> None:
    write_run(tiny_data, work.directory, num_steps=10)
    options = ["--launcher", "slurm", "--name", "lr", "--cpus-per-task", "1", "--at-once", "1"]
    work.run("launch", "tiny.yaml", *PATIENCE, *options, "--sweep", "seed=1,2,3")
    work.until(lambda: work.sweep()[0]["state"] == "finished", work.sweep)
    work.run("sweep", "cancel", "lr")
    work.until(lambda: not work.states(), work.states)
    before = [row["state"] for row in work.sweep()]
    assert before[0] == "finished"
    assert set(before[1:]) == {"cancelled"}
    told = work.ask("sweep", "resubmit", "lr")
    assert "2 points submitted" in told.stderr, told
    work.until(lambda: not work.states(), work.states)
    assert [row["state"] for row in work.sweep()] == ["finished"] * 3
    assert work.num_attempts("lr-000") == 1


CHAIN = """
name: life
launch: {launcher: slurm, cpus_per_task: 1}
stages:
  pretrain:
    config: tiny.yaml
    overrides: [output_dir=runs/pretrain, fault_tolerance.hang_timeout_s=600, parallel.process_group_timeout_s=900]
  midtrain:
    needs: [pretrain]
    config: midtrain.yaml
    overrides: {init_from: "${pretrain.run}", data.sources.0.path: TRAIN}
  evaluate:
    needs: [midtrain]
    command: >
      glmforge evaluate needles ${midtrain.run} --length 200 --depth 0.5 --num-examples 1
      --out ${evaluate.outputs.needles}
    outputs: {needles: "${evaluate.job}/needles.jsonl"}
"""
MIDTRAIN = """
name: midtrain
stage: midtrain
data: {sources: [{name: text, path: nowhere}]}
phases: [{name: main, steps: 12, seq_len: 32, batch_size: 8}]
optim: {lr: 1e-3, min_lr: 1e-4, warmup_steps: 2}
precision: {compute: fp32}
checkpoint: {every_steps: 2}
observe: {progress: false, tensorboard: false}
parallel: {process_group_timeout_s: 900}
fault_tolerance: {hang_timeout_s: 600}
"""


def write_chain(data: TinyData, directory: Path) -> None:
    write_run(data, directory, num_steps=6)
    (directory / "midtrain.yaml").write_text(MIDTRAIN)
    (directory / "life.yaml").write_text(CHAIN.replace("TRAIN", str(data.train)))


def test_a_chain_of_which_a_stage_is_requeued_and_one_is_cancelled(work: Work, tiny_data: TinyData) -> None:
    write_chain(tiny_data, work.directory)
    work.run("chain", "run", "life.yaml")
    numbers = {stage: row["id"] for stage, row in work.chain().items()}

    # What is requeued keeps its number, and what waits for it goes on waiting.
    metrics = work.directory / "runs" / "pretrain" / "metrics.jsonl"
    work.until(lambda: metrics.exists() and len(losses(metrics.parent)) >= 1, work.chain)
    work.cluster.run("scontrol", "requeue", numbers["pretrain"])
    work.cluster.poll(numbers["pretrain"], lambda: work.chain()["pretrain"]["state"] == "finished", LIMIT_S)
    assert {stage: row["id"] for stage, row in work.chain().items()} == numbers
    num_attempts = work.num_attempts("life-pretrain")

    # One that is cancelled leaves the next one waiting for ever, which is said, and mended by 'resume'.
    work.until(lambda: work.chain()["midtrain"]["state"] == "running", work.chain)
    work.cluster.run("scancel", numbers["midtrain"])
    work.until(lambda: work.chain()["midtrain"]["state"] in ("cancelled", "stopped", "failed"), work.chain)
    work.until(lambda: work.chain()["evaluate"]["state"] == "held", work.chain)
    assert "glmforge chain resume life" in work.chain()["evaluate"]["hint"]
    told = work.ask("chain", "resume", "life")
    assert "pretrain: has finished already" in told.stderr, told
    again = {stage: row["id"] for stage, row in work.chain().items()}
    assert again["pretrain"] == numbers["pretrain"]
    assert again["midtrain"] != numbers["midtrain"]
    assert again["evaluate"] != numbers["evaluate"]

    work.until(lambda: not work.states(), work.states)
    assert [row["state"] for row in work.chain().values()] == ["finished"] * 3, work.chain()
    assert work.num_attempts("life-pretrain") == num_attempts
    assert len(losses(work.directory / "runs" / "midtrain")) == 12
    assert (work.directory / "jobs" / "life-evaluate" / "needles.jsonl").stat().st_size > 0


def test_a_submission_that_was_not_noted_is_adopted(work: Work, tiny_data: TinyData) -> None:
    """Killed between a submission and the note of it: the job that Slurm has is found, and not submitted twice."""
    write_chain(tiny_data, work.directory)
    work.run("chain", "run", "life.yaml")
    number = work.chain()["midtrain"]["id"]
    (work.directory / "jobs" / "life-midtrain" / "submissions.jsonl").unlink()
    told = work.ask("chain", "resume", "life")
    assert f"midtrain: was submitted before, as {number}" in told.stderr, told
    names = work.states("--format=%j")  # in place of states
    assert len(names) == 3
    work.run("chain", "cancel", "life")
    work.until(lambda: not work.states(), work.states)
