"""A run that was interrupted goes on as if it had not been: by SIGKILL, over phases."""

import json
import random
import signal
from functools import partial
from pathlib import Path

import pytest

from glmforge.config import RunConfig
from glmforge.errors import CheckpointError
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from helpers.command import num_lines, write_config
from helpers.distributed import run_ranks
from helpers.job import start_job
from helpers.tiny_data import TinyData

PHASES = [
    {"name": "first", "steps": 7, "seq_len": 32, "batch_size": 8},
    {"name": "second", "steps": 9, "seq_len": 48, "batch_size": 4, "rope_theta": 2e6, "mtp_loss_weight": 0.1},
]
NUM_STEPS = 16


def config_for(tiny_data: TinyData, output_dir: Path) -> RunConfig:
    return tiny_data.run_config(output_dir, phases=PHASES, checkpoint={"every_steps": 3, "keep_last": 2})


def losses_of(config: RunConfig) -> list[float]:
    records = read_jsonl(config.output_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record["loss"] for record in records]


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_losses_after_sigkill_are_bit_equal(tiny_data: TinyData, tmp_path: Path, num_ranks: int) -> None:
    whole = config_for(tiny_data, tmp_path / "whole")
    run_ranks(rank_train, num_ranks, whole, init_group=False)
    expected = losses_of(whole)
    assert len(expected) == NUM_STEPS

    killed = config_for(tiny_data, tmp_path / "killed")
    path, metrics = write_config(killed), killed.output_dir / "metrics.jsonl"
    generator = random.Random(num_ranks)
    for launch, at_step in enumerate(sorted(generator.sample(range(1, NUM_STEPS), 2))):
        job = start_job(Path(path), num_ranks, tmp_path / "logs", launch)
        assert job.wait_until(partial(has_lines, metrics, at_step)), job.tail()
        job.signal(signal.SIGKILL)
        assert job.wait() == [-signal.SIGKILL] * num_ranks
    job = start_job(Path(path), num_ranks, tmp_path / "logs", 2)
    assert job.wait() == [0] * num_ranks, job.tail()
    assert losses_of(killed) == expected


def has_lines(path: Path, count: int) -> bool:
    return num_lines(path) >= count


def rank_train(config: RunConfig) -> None:
    train(config)


def test_a_finished_run_has_nothing_left_to_do(tiny_data: TinyData, tmp_path: Path) -> None:
    config = config_for(tiny_data, tmp_path / "run")
    assert train(config).step == NUM_STEPS
    before = (config.output_dir / "metrics.jsonl").read_text()
    assert train(config).step == NUM_STEPS
    assert (config.output_dir / "metrics.jsonl").read_text() == before
    events = [json.loads(line)["event"] for line in (config.output_dir / "events.jsonl").read_text().splitlines()]
    assert [event for event in events if event != "saved"] == ["started", "finished", "resumed", "finished"]


def test_other_data_is_refused_and_a_longer_run_is_not(tiny_data: TinyData, tmp_path: Path) -> None:
    config = config_for(tiny_data, tmp_path / "run")
    train(config)
    before = config.model_copy(update={"seed": 7})
    with pytest.raises(CheckpointError, match=r"seed was 0 and is 7 \(it determines the order of samples"):
        train(before)
    longer = tiny_data.run_config(
        config.output_dir,
        phases=[*PHASES, {"name": "third", "steps": 2, "seq_len": 16, "batch_size": 4}],
    )
    assert train(longer).step == NUM_STEPS + 2
