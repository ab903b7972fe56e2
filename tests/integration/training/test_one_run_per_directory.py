"""Starts beside a run that works in the same directory: one works, the others say who it is and touch nothing."""

import signal
from pathlib import Path

import psutil
import pytest

from glmforge.observe.record_files import read_jsonl
from glmforge.runtime import lease
from glmforge.runtime.lease import Claim
from helpers.command import Commands, Started, num_lines, own_lines, write_config
from helpers.tiny_data import TinyData


def config_in(tiny_data: TinyData, tmp_path: Path, steps: int) -> str:
    phases = [{"name": "main", "steps": steps, "seq_len": 32, "batch_size": 8}]
    config = tiny_data.run_config(
        tmp_path / "run", phases=phases, checkpoint={"every_steps": 5}, fault_tolerance={"lock_lease_s": 2.0}
    )
    return write_config(config)


def interrupt_and_check(started: Started, run: Path) -> None:
    """It works until then, and every step and the start are recorded once."""
    started.wait_for_steps(run, num_lines(run / "metrics.jsonl") + 3)
    started.interrupt()
    assert started.wait() == 130, started.output[-3000:]
    steps = [record["step"] for record in read_jsonl(run / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))
    assert [record["event"] for record in read_jsonl(run / "events.jsonl")].count("started") == 1


def test_a_second_start_is_refused_and_the_first_goes_on(
    tiny_data: TinyData, tmp_path: Path, commands: Commands
) -> None:
    run, config = tmp_path / "run", config_in(tiny_data, tmp_path, 100_000)
    first = commands.start("train", config)
    first.wait_for_steps(run, 3)
    others = [
        commands.start("train", config, "optim.lr=1e-2", prepared=True),
        commands.start("checkpoint", "consolidate", str(run), "--local-dir", str(tmp_path / "none"), prepared=True),
    ]
    for other in others:
        assert other.wait() == 1
        lines = own_lines(other.output)
        assert len(set(lines)) == 1, other.output
        assert f"{run}: in use by 'glmforge train' on " in lines[0]
        assert f"(process {first.process.pid})" in lines[0]
        assert "last heartbeat 20" in lines[0]
    interrupt_and_check(first, run)


@pytest.mark.chaos
def test_each_rank_of_a_second_start_says_who_works_there(
    tiny_data: TinyData, tmp_path: Path, commands: Commands
) -> None:
    run, config = tmp_path / "run", config_in(tiny_data, tmp_path, 100_000)
    first = commands.start("train", config)
    first.wait_for_steps(run, 3)
    other = commands.start("train", config, ranks=2)
    assert other.wait() == 1
    lines = own_lines(other.output)
    assert len(lines) == 2
    assert len(set(lines)) == 1
    assert f"(process {first.process.pid})" in lines[0]
    interrupt_and_check(first, run)


@pytest.mark.chaos
def test_of_starts_at_the_same_time_one_runs(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    run, config = tmp_path / "run", config_in(tiny_data, tmp_path, 100_000)
    starts = [commands.start("train", config, f"seed={seed}", prepared=True) for seed in (1, 2, 3)]
    starts[0].wait_until(lambda: sum(start.process.poll() is not None for start in starts) >= 2, alive=False)
    (winner,) = [start for start in starts if start.process.poll() is None]
    assert [start.wait() for start in starts if start is not winner] == [1, 1]
    interrupt_and_check(winner, run)


@pytest.mark.chaos
def test_the_same_job_started_again_by_torchrun_is_not_locked_out(
    tiny_data: TinyData, tmp_path: Path, commands: Commands
) -> None:
    run, config = tmp_path / "run", config_in(tiny_data, tmp_path, 60)
    job = commands.start("train", config, ranks=2, restarts=2)
    job.wait_for_steps(run, 8)
    psutil.Process(job.workers()[0]).kill()  # rank 0, which holds the directory
    assert job.wait() == 0, job.output[-3000:]
    assert [record["step"] for record in read_jsonl(run / "metrics.jsonl")] == list(range(1, 61))


@pytest.mark.chaos
def test_a_run_that_was_suspended_and_taken_over_stops_in_one_line(
    tiny_data: TinyData, tmp_path: Path, commands: Commands
) -> None:
    run, config = tmp_path / "run", config_in(tiny_data, tmp_path, 100_000)
    first = commands.start("train", config)
    first.wait_for_steps(run, 12)
    first.process.send_signal(signal.SIGSTOP)
    first.wait_until(lambda: psutil.Process(first.process.pid).status() == psutil.STATUS_STOPPED)
    (path,) = [path for path in (run / ".lock").iterdir() if path.name.isdecimal()]
    claim = Claim.model_validate_json(path.read_bytes())
    elsewhere = claim.holder.model_copy(update={"boot": "another", "host": "node-7"})
    path.write_bytes(lease._encode(claim.model_copy(update={"holder": elsewhere})))
    second = commands.start("train", config)
    second.wait_until(lambda: "waiting up to 2 s for a sign of life" in " ".join(second.output.split()))
    second.wait_until(lambda: any("resumed" in record["event"] for record in read_jsonl(run / "events.jsonl")))
    first.process.send_signal(signal.SIGCONT)
    assert first.wait() == 1
    (line,) = own_lines(first.output)
    assert f"{run}: taken over by 'glmforge train' on " in line
    assert f"(process {second.process.pid})" in line
    assert "Traceback" not in first.output
    interrupt_and_check(second, run)
