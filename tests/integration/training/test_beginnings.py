"""Runs that died early, or whose records are damaged, start again by themselves."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from glmforge.config import RunConfig
from glmforge.errors import CheckpointError
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory
from glmforge.recipes.train import train
from glmforge.training.trainer import Hook, Trainer
from helpers.command import Commands, write_config
from helpers.tiny_data import TinyData


class Dies(Hook):
    """As if the process had been killed before a step, but for the locks that a process takes with it."""

    name = "dies"

    def __init__(self, at_step: int) -> None:
        self.at_step = at_step

    def on_step_start(self, trainer: Trainer) -> None:
        if trainer.state.step + 1 == self.at_step:
            raise KeyboardInterrupt


def config_in(tiny_data: TinyData, tmp_path: Path, every: int, **sections: Any) -> RunConfig:
    phases = [{"name": "main", "steps": 6, "seq_len": 16, "batch_size": 2}]
    checkpoint = {"every_steps": every, "background": False, "local_dir": str(tmp_path / "disk")}
    return tiny_data.run_config(tmp_path / "run", phases=phases, checkpoint=checkpoint, **sections)


def die(config: RunConfig, at_step: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config, [Dies(at_step)])


def half_save(tmp_path: Path, step: int) -> Path:
    """What a rank had written to its node's disk when it was killed: a step without the list of its files."""
    directory = tmp_path / "disk" / "tiny" / f"step-{step:08d}"
    directory.mkdir(parents=True)
    (directory / "__0_0.distcp").write_bytes(b"half")
    return directory


def steps_of(config: RunConfig) -> list[int]:
    return [record["step"] for record in read_jsonl(config.output_dir / "metrics.jsonl")]


def test_a_run_that_died_in_its_first_save_begins_anew(tiny_data: TinyData, tmp_path: Path) -> None:
    config = config_in(tiny_data, tmp_path, every=100)
    die(config, at_step=4)
    half = half_save(tmp_path, 3)
    assert steps_of(config) == [1, 2, 3]
    die(config, at_step=2)  # as often as it takes
    assert not half.exists()
    half_save(tmp_path, 1)
    assert train(config).step == 6
    assert steps_of(config) == [1, 2, 3, 4, 5, 6]


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(tiny_data: TinyData, tmp_path: Path) -> None:
    """On shared storage, where a save that was cut short leaves a directory of another name."""
    phases = [{"name": "main", "steps": 6, "seq_len": 16, "batch_size": 2}]
    config = tiny_data.run_config(tmp_path / "run", phases=phases)
    die(config, at_step=4)
    half = tmp_path / "run" / "checkpoints" / ".step-00000003.partial-host-1"
    half.mkdir(parents=True)
    assert train(config).step == 6
    assert steps_of(config) == [1, 2, 3, 4, 5, 6]
    assert not half.exists()


@pytest.mark.chaos
def test_torchrun_begins_such_a_run_anew(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    phases = [{"name": "main", "steps": 200, "seq_len": 16, "batch_size": 2}]
    config = tiny_data.run_config(tmp_path / "run", phases=phases)
    job = commands.start("train", write_config(config), ranks=2, restarts=1)
    job.wait_for_steps(config.output_dir, 3)
    psutil.Process(job.workers()[1]).kill()
    assert job.wait() == 0, job.output[-3000:]
    assert steps_of(config) == list(range(1, 201))
    events = read_jsonl(config.output_dir / "events.jsonl")
    assert [(e["event"], e["step"]) for e in events if e["event"] in ("started", "resumed")] == [
        ("started", 0),
        ("resumed", 0),
    ]


def test_a_run_that_once_had_a_whole_checkpoint_does_not(tiny_data: TinyData, tmp_path: Path) -> None:
    """A node was replaced: what it held may be rescued."""
    config = config_in(tiny_data, tmp_path, every=2)
    die(config, at_step=4)
    for part in tmp_path.glob("disk/tiny/step-*/part-*.json"):
        part.unlink()
    for published in (tmp_path / "run" / "checkpoints").glob("step-*"):
        published.rename(tmp_path / published.name)
    (tmp_path / "run" / "events.jsonl").unlink()  # records are no state
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        train(config)
    assert list(tmp_path.glob("disk/tiny/step-*"))


def test_resume_never_minds_checkpoints_only(tiny_data: TinyData, tmp_path: Path) -> None:
    config = config_in(tiny_data, tmp_path, every=100, fault_tolerance={"resume": "never"})
    die(config, at_step=4)
    (tmp_path / "run" / "checkpoints" / ".step-00000003.partial-host-1").mkdir(parents=True)
    assert train(config).step == 6
    assert steps_of(config) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(CheckpointError, match=r"contains checkpoints, but fault_tolerance\.resume is 'never'"):
        train(config)


def test_a_damaged_run_json_does_not_keep_a_run_from_its_checkpoint(tiny_data: TinyData, tmp_path: Path) -> None:
    config = config_in(tiny_data, tmp_path, every=2)
    die(config, at_step=6)
    RunDirectory(config.output_dir).info.write_bytes(b"\0" * 100)
    assert train(config).step == 6
    resumed = [event for event in read_jsonl(tmp_path / "run" / "events.jsonl") if event["event"] == "resumed"]
    assert [event["step"] for event in resumed] == [4]
