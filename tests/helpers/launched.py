"""A job launched by `glmforge launch` on a development cluster with hosts of their own, and what becomes of it.

    with launch_cluster(directory) as cluster:
        job = launch(cluster, directory, config, "--nodes", "2", "--spare-nodes", "1")
        job.wait_for_step(7)
        ...
        job.finish()

All is looked up in the job's files; a wait ends when what is waited for is there, or fails. A job that Slurm has queued
again is started soon, not after the two minutes that Slurm waits by itself.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig, dump_config
from glmforge.observe.job_records import AttemptDirectory, JobDirectory, RankRecord
from glmforge.observe.record_files import read_jsonl
from glmforge_ops.dev import DevOptions, development_cluster
from glmforge_ops.dev.state import HEAD
from helpers.dev_cluster import Cluster, hosts_or_skip, install_slurm_or_skip
from helpers.job import start_job
from helpers.tiny_data import TinyData

SMALL = DevOptions(nodes=3, gpus=0, cpus=4, slurmd_timeout_s=30, grace_time_s=60)
LIMIT_S = 900.0
_COMMAND_LIMIT_S = 300.0

_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Hosts in namespaces need root, which Open MPI refuses unless told so."""

CHECKPOINT = {"every_steps": 40, "ephemeral_every_steps": 5, "max_failed_saves": 1000}


@contextmanager
def launch_cluster(directory: Path, options: DevOptions = SMALL, **changes: Any) -> Iterator[Cluster]:
    """Slurm on three hosts of their own, which answer through ssh as well."""
    hosts_or_skip()
    install_slurm_or_skip()
    with development_cluster(directory, replace(options, **changes)) as dev:
        yield Cluster(dev)


def small_run(data: TinyData, output_dir: Path, steps: int, **sections: Any) -> RunConfig:
    """A tiny model in small parts: a step lasts long enough to be struck, and a recent state is always there."""
    settings: dict[str, Any] = {
        "phases": [{"name": "main", "steps": steps, "seq_len": 32, "batch_size": 8}],
        "checkpoint": CHECKPOINT,
        # Patient with a busy machine: a hang is what the test makes one.
        "parallel": {"process_group_timeout_s": 300, "micro_batch_size": 2},
        "fault_tolerance": {"hang_timeout_s": 60},
    }
    return data.run_config(output_dir, **(settings | sections))


def losses_of(run: Path) -> list[float]:
    """Of all steps; there must be one record of each, in order."""
    path = run / "metrics.jsonl"
    records = [record for record in read_jsonl(path) if "loss" in record] if path.exists() else []
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record["loss"] for record in records]


def unharmed(config: RunConfig, directory: Path, ranks: int, steps: int | None = None) -> list[float]:
    """Losses of the same run on this machine, with nobody who disturbs it; of the first `steps`."""
    directory.mkdir(parents=True)
    path = directory / "run.yaml"
    path.write_text(dump_config(config.model_copy(update={"output_dir": directory / "run"})))
    job = start_job(path, ranks, directory / "notes", 0, stop_after=steps)
    assert not any(job.wait(LIMIT_S)), job.tail()
    return losses_of(directory / "run")


def launch(cluster: Cluster, directory: Path, config: RunConfig, *words: str) -> "Launched":
    """The job of `config`, launched from the head with `words`; its files are in `directory`."""
    path = directory / f"{config.name}.yaml"
    path.write_text(dump_config(config))
    job = Launched(cluster, directory, config)
    job.glmforge("launch", str(path), "--no-plan", "--no-check", "--env", "OMP_NUM_THREADS=1", *words)
    return job


@dataclass(frozen=True)
class Launched:
    """A job, by its files."""

    cluster: Cluster
    directory: Path
    config: RunConfig

    @property
    def files(self) -> JobDirectory:
        return JobDirectory(self.directory / "jobs" / self.config.name)

    @property
    def number(self) -> str:
        """The scheduler's."""
        return self.files.read_submissions()[-1].id

    @property
    def is_slurms(self) -> bool:
        return self.files.read_submissions()[-1].launcher == "slurm"

    def glmforge(self, *words: str) -> str:
        """Output of a command of ours on the head, which must succeed."""
        dev = self.cluster.dev
        command = ["env", f"--chdir={self.directory}", sys.executable, "-m", "glmforge", *words]
        done = dev.run(HEAD, *command, environment=_AS_ROOT, check=False, timeout_s=_COMMAND_LIMIT_S)
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    # What has become of it.

    def events(self, name: str) -> list[dict[str, Any]]:
        """Of the job, of this kind."""
        return [event for event in self.files.read_events() if event["event"] == name]

    @property
    def step(self) -> int:
        """The last that the run has recorded."""
        path = self.config.output_dir / "metrics.jsonl"
        return max((record["step"] for record in read_jsonl(path)), default=0) if path.exists() else 0

    @property
    def attempt(self) -> int:
        """The last one's number."""
        return max((event["attempt"] for event in self.events("attempt started")), default=0)

    def causes(self) -> list[str]:
        """Why the attempts ended that have been judged."""
        return [event["cause"] for event in self.events("verdict")]

    @property
    def nodes(self) -> list[str]:
        """Of the last attempt, in the order of ranks."""
        nodes: list[str] = self.events("attempt started")[-1]["nodes"]
        return nodes

    def rank(self, number: int) -> RankRecord:
        """Of the last attempt."""
        path = AttemptDirectory(self.files.attempt(self.attempt).root).rank(number)
        record = RankRecord.read(path)
        assert record is not None, f"no {path}"
        return record

    def signal_rank(self, number: int, signal: str) -> None:
        rank = self.rank(number)
        self.cluster.dev.run(rank.node, "kill", f"-{signal}", str(rank.pid))

    def batch_node(self) -> str:
        return self.cluster.job(self.number)["BatchHost"]

    def is_up(self, node: str) -> bool:
        """Whether the host has neither failed nor lost its link."""
        return self.cluster.dev.refresh().hosts[node].state == "up"

    def said(self) -> str:
        """What a person would look at."""
        logs = [*self.files.root.glob("scheduler-*.log"), *sorted(self.files.attempts.glob("*/*.log"))[-4:]]
        tails = [f"--- {log.name}\n{log.read_bytes()[-1500:].decode(errors='replace')}" for log in logs]
        return "\n".join([*(str(event) for event in self.files.read_events()[-25:]), *tails])

    # Waiting.

    def wait_until(self, reached: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        hurried = set[str]()
        while not reached():
            assert time.monotonic() < deadline, f"not reached in {limit_s:g} s\n{self.said()}"
            assert not self.is_over() or reached(), f"it has ended\n{self.said()}"
            if self.is_slurms:
                self.hurry(hurried)
            time.sleep(0.2)  # looks at what other processes have done; the outcome does not depend on it

    def hurry(self, hurried: set[str]) -> None:
        """Have Slurm start the job soon after a requeue, once no node has to tidy up after it; once for each."""
        done = subprocess.run(
            ["squeue", "--noheader", "--jobs", self.number, "--format", "%T %r"],
            env=self.cluster.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.stdout.split() != ["PENDING", "BeginTime"]:
            return
        restarts = self.cluster.job(self.number)["Restarts"]
        if restarts not in hurried and not self.cluster.lingers(self.number):
            hurried.add(restarts)
            self.cluster.run("scontrol", "update", f"JobId={self.number}", "StartTime=now+2")

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: self.step >= step)

    def wait_for_training(self, after: int) -> dict[str, Any]:
        """What the supervisor wrote at the first training step of an attempt later than `after`."""
        found: list[dict[str, Any]] = []

        def trains() -> bool:
            found[:] = [event for event in self.events("training") if event["attempt"] > after]
            return bool(found)

        self.wait_until(trains)
        return found[-1]

    def is_over(self) -> bool:
        """Whether the supervisor has done with it."""
        return self._last_decision() in ("done", "stop")

    def _last_decision(self) -> str:
        decided = self.events("decided")
        return str(decided[-1]["do"]) if decided else ""

    def finish(self) -> list[float]:
        """Losses of all steps of the run, which must end well by itself."""
        self.wait_until(self.is_over)
        assert self._last_decision() == "done", self.said()
        assert self.causes()[-1] == "finished", self.said()
        losses = losses_of(self.config.output_dir)
        assert len(losses) == sum(phase.steps or 0 for phase in self.config.phases)
        return losses

    def stop(self) -> list[float]:
        """Losses of the run, which is asked to save and stop."""
        self.glmforge("control", str(self.config.output_dir), "stop")
        self.wait_until(self.is_over)
        assert self.causes()[-1] == "stopped", self.said()
        return losses_of(self.config.output_dir)

    def end(self) -> None:
        """Whatever is left of it."""
        if not self.files.submissions.exists():
            return
        if self.is_slurms:
            self.cluster.run("scancel", "--quiet", self.number)
            self.wait_until_gone()
        elif not self.is_over():
            self.glmforge("jobs", "cancel", self.config.name)

    def wait_until_gone(self) -> None:
        """From Slurm's queue."""
        deadline = time.monotonic() + LIMIT_S
        while self.cluster.run("squeue", "--noheader", "--states=R,CG,PD", "--format=%i").split().count(self.number):
            assert time.monotonic() < deadline
            time.sleep(0.2)  # looks at what Slurm has done; the outcome does not depend on it


def seconds_between(earlier: str, later: str) -> float:
    """Of two events' times."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
