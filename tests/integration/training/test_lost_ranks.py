"""What the survivors say when a rank ends: one line that names it, whoever started them."""

import signal
import socket
from pathlib import Path

import psutil
import pytest

from helpers.command import LIMIT_S, Commands, own_lines, write_config
from helpers.tiny_data import TinyData

HOST = socket.gethostname()


def config_in(tiny_data: TinyData, tmp_path: Path) -> str:
    phases = [{"name": "main", "steps": 100_000, "seq_len": 32, "batch_size": 6}]
    return write_config(tiny_data.run_config(tmp_path / "run", phases=phases))


@pytest.mark.chaos
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_by_those_started_by_hand(
    tiny_data: TinyData, tmp_path: Path, commands: Commands, victim: int
) -> None:
    """Rank 0 also keeps the store through which they talk."""
    ranks = commands.start_by_hand(3, "train", config_in(tiny_data, tmp_path))
    ranks[0].wait_for_steps(tmp_path / "run", 3)
    ranks[victim].process.kill()
    log, process = ranks[victim].log, ranks[victim].process.pid
    for rank, started in enumerate(ranks):
        if rank == victim:
            continue
        assert started.wait() == 1
        assert "Traceback" not in started.output
        assert "pair.cc" not in started.output
        assert own_lines(started.output) == [
            f"glmforge: rank {victim} on {HOST} (process {process}) was lost: it exited without a message: killed, "
            f"crashed, or out of memory (its log: {log}); rank "
            f"{rank} on {HOST} exits with it. Run it again to resume from the last checkpoint"
        ]


def test_a_killed_rank_is_named_under_torchrun(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    job = commands.start("train", config_in(tiny_data, tmp_path), ranks=2)
    job.wait_for_steps(tmp_path / "run", 3)
    victim = job.workers()[1]
    psutil.Process(victim).send_signal(signal.SIGKILL)
    assert job.wait() == 1
    (line,) = own_lines(job.output)
    assert line.startswith(f"glmforge: rank 1 on {HOST} (process {victim}) was lost: ")
    before_torchrun_reports = job.output.split("ChildFailedError")[0]
    assert "pair.cc" not in before_torchrun_reports


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_a_killed_torchrun_takes_its_ranks_with_it(
    tiny_data: TinyData, tmp_path: Path, commands: Commands, trains: bool
) -> None:
    """Also before the first step, where rank 0 waits for the other, which does not come."""
    job = commands.start("train", config_in(tiny_data, tmp_path), ranks=2)
    job.wait_until(lambda: len(job.workers()) == 2)
    ranks = {rank: psutil.Process(pid) for rank, pid in job.workers().items()}
    if trains:
        job.wait_for_steps(tmp_path / "run", 3)
    else:
        ranks[1].suspend()
        job.wait_until(lambda: bool(ranks[0].net_connections()))  # to torchrun's store
    job.process.kill()
    ranks[0].wait(LIMIT_S)
    if not trains:
        ranks[1].kill()
    ranks[1].wait(LIMIT_S)
    told = f"glmforge: torchrun (process {job.process.pid}) was killed, and its ranks end, too; run it again to resume"
    assert own_lines(job.output) == [told]


def test_what_a_rank_said_last_is_said_by_all(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    """One rank's node lacks the data."""
    config = config_in(tiny_data, tmp_path)
    lacking = ["data.sources.0.path=/nowhere/shard"]
    ranks = commands.start_by_hand(2, "train", config, overrides_of_rank={1: lacking})
    assert [rank.wait() for rank in ranks] == [1, 1]
    (cause,) = own_lines(ranks[1].output)
    (told,) = own_lines(ranks[0].output)
    words = cause.removeprefix("glmforge: ")
    assert "/nowhere/shard" in cause
    process = ranks[1].process.pid
    assert told.startswith(f"glmforge: rank 1 on {HOST} (process {process}) failed first: {words}")
    assert "Traceback" not in ranks[0].output + ranks[1].output
