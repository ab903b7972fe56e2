"""torchrun starts a run again after a blow, on fewer nodes if it must, and the run goes on by itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from glmforge.config import dump_config
from glmforge.observe.record_files import read_jsonl
from helpers.chaos import run_config
from helpers.distributed import free_port
from helpers.job import start_job
from helpers.tiny_data import TinyData

pytestmark = pytest.mark.chaos

NUM_STEPS = 120
BLOW_AFTER_STEP = 7
LIMIT_S = 500.0
# Patient with a busy machine: nothing here is to end because a process was slow.
PATIENCE = ["parallel.process_group_timeout_s=300", "fault_tolerance.hang_timeout_s=200"]
EVENTS = ("started", "resumed", "finished")


@dataclass(frozen=True)
class Agent:
    """torchrun on one "node"."""

    process: subprocess.Popen[bytes]
    log: Path

    def workers(self) -> list[psutil.Process]:
        """Its ranks. (torch keeps other processes beside them.)"""
        with suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in children if "train" in child.cmdline()]
        return []

    def kill(self) -> None:
        """As when the node loses power."""
        for process in [self.process, *self.workers()]:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class ElasticRun:
    """A run in `directory`, started by agents."""

    directory: Path
    agents: Sequence[Agent]

    @property
    def events(self) -> list[dict[str, Any]]:
        path = self.directory / "run" / "events.jsonl"
        return [record for record in read_jsonl(path) if record["event"] in EVENTS] if path.exists() else []

    @property
    def losses(self) -> list[float]:
        path = self.directory / "run" / "metrics.jsonl"
        return [record["loss"] for record in read_jsonl(path)] if path.exists() else []

    def wait_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while True:
            is_alive = self.agents[0].process.poll() is None
            if reached():
                return
            assert is_alive, self.tail()
            assert time.monotonic() < deadline, f"not reached in {LIMIT_S:g} s\n{self.tail()}"
            time.sleep(0.02)  # looks at files that other processes write; the outcome does not depend on it

    def wait_for_blow(self) -> None:
        """Until the run is well under way."""
        self.wait_until(lambda: len(self.losses) >= BLOW_AFTER_STEP)

    def tail(self) -> str:
        return "\n".join(f"--- {agent.log.name}\n{text_of(agent.log)[-4000:]}" for agent in self.agents)


@contextmanager
def started(directory: Path, config: Path, nodes: Sequence[Sequence[str]], *overrides: str) -> Iterator[ElasticRun]:
    """A run by torchrun with these options on each "node"; within the block, which leaves nothing running."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    agents = []
    try:
        for number, options in enumerate(nodes):
            log = directory / f"agent{number}.log"
            with log.open("wb") as output:
                torchrun = [sys.executable, "-m", "torch.distributed.run", *options]
                process = subprocess.Popen(
                    [*torchrun, "-m", "glmforge", "train", str(config), *PATIENCE, *overrides],
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            agents.append(Agent(process, log))
        yield ElasticRun(directory, agents)
    finally:
        for agent in agents:
            agent.kill()


def two_agents(max_restarts: int) -> list[list[str]]:
    """Options of two agents, of which the first keeps the rendezvous. One that is gone is missed after some seconds."""
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=test"]
    conf = "join_timeout=300,last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=5"
    common = ["--nnodes=1:2", "--nproc-per-node=1", f"--max-restarts={max_restarts}", *rendezvous]
    return [[*common, f"--rdzv-conf=is_host={host},{conf}"] for host in ("true", "false")]


def write_config(data: TinyData, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "run.yaml"
    config = run_config(data, directory / "run", NUM_STEPS)
    fewer_saves = config.checkpoint.model_copy(update={"every_steps": 40, "ephemeral_every_steps": 5})
    path.write_text(dump_config(config.model_copy(update={"checkpoint": fewer_saves})))
    return path


def reference_losses(data: TinyData, directory: Path, parts: Sequence[tuple[int, int | None]]) -> list[float]:
    """Losses of a run that nothing happens to: on so many ranks to that step, then on so many to the next."""
    config = write_config(data, directory)
    for number, (world_size, stop) in enumerate(parts):
        job = start_job(config, world_size, directory / "notes", number, lambda rank: PATIENCE, stop_after=stop)
        assert not any(job.wait(LIMIT_S)), job.tail()
    return ElasticRun(directory, []).losses


def text_of(log: Path) -> str:
    return log.read_bytes().decode(errors="replace")


def test_torchrun_starts_the_run_again_after_a_rank_is_killed(tiny_data: TinyData, tmp_path: Path) -> None:
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    with started(tmp_path, write_config(tiny_data, tmp_path), [options]) as run:
        run.wait_for_blow()
        run.agents[0].workers()[-1].kill()
        run.wait_until(lambda: run.agents[0].process.poll() == 0)
    assert [event["event"] for event in run.events] == ["started", "resumed", "finished"]
    assert run.events[1]["step"] > 0
    assert run.losses == reference_losses(tiny_data, tmp_path / "reference", [(2, None)])


def test_a_run_goes_on_alone_when_a_node_is_lost(tiny_data: TinyData, tmp_path: Path) -> None:
    with started(tmp_path, write_config(tiny_data, tmp_path), two_agents(max_restarts=3)) as run:
        run.wait_for_blow()
        run.agents[1].kill()
        run.wait_until(lambda: run.agents[0].process.poll() == 0)
    assert [event["event"] for event in run.events] == ["started", "resumed", "finished"]
    resumed = run.events[1]["step"]
    assert resumed > 0
    assert run.losses == reference_losses(tiny_data, tmp_path / "reference", [(2, resumed), (1, None)])


def test_a_run_that_needs_two_nodes_does_not_go_on_with_one(tiny_data: TinyData, tmp_path: Path) -> None:
    config = write_config(tiny_data, tmp_path)
    with started(tmp_path, config, two_agents(max_restarts=1), "fault_tolerance.min_nodes=2") as run:
        run.wait_until(lambda: len(run.losses) >= BLOW_AFTER_STEP or "min_nodes" in text_of(run.agents[0].log))
        run.agents[1].kill()
        run.agents[0].process.wait(LIMIT_S)
    assert run.agents[0].process.returncode == 1
    refusals = [line for line in text_of(run.agents[0].log).splitlines() if "glmforge: fault_tolerance" in line]
    assert refusals
    assert all("min_nodes: 2, but the launcher started 1; bring nodes back" in line for line in refusals)
    assert [event["event"] for event in run.events] == ["started"]
    assert len(run.losses) < NUM_STEPS
