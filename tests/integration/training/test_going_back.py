"""A run goes on from an older checkpoint that somebody chose; what came after it is kept."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import RunConfig
from glmforge.errors import CheckpointError
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.train import train
from glmforge.training.trainer import Hook, Trainer
from helpers.command import write_config
from helpers.prepared import programs
from helpers.tiny_data import TinyData

PHASES = [{"name": "main", "steps": 8, "seq_len": 16, "batch_size": 2}]


def config_in(data: TinyData, directory: Path, resume: str = "auto", **checkpoint: Any) -> RunConfig:
    return data.run_config(
        directory / "run",
        phases=PHASES,
        checkpoint={"every_steps": 2, "keep_last": 9, "background": False} | checkpoint,
        fault_tolerance={"resume": resume},
    )


class Dies(Hook):
    name = "dies"

    def __init__(self, at_step: int) -> None:
        self.at_step = at_step

    def on_step_start(self, trainer: Trainer) -> None:
        if trainer.state.step + 1 == self.at_step:
            raise KeyboardInterrupt


def losses_of(directory: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in read_jsonl(directory / "run" / "metrics.jsonl")}


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("step-*"))


def test_it_goes_back_once_and_then_on(tiny_data: TinyData, tmp_path: Path) -> None:
    train(config_in(tiny_data, tmp_path))
    expected = losses_of(tmp_path)
    root = tmp_path / "run" / "checkpoints"
    newest = (root / "step-00000008" / "meta.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        train(config_in(tiny_data, tmp_path, "step-4"), [Dies(at_step=8)])
    assert names_in(root) == [
        "step-00000002",
        "step-00000004",
        "step-00000006",
        "step-00000006.set-aside",
        "step-00000008.set-aside",
    ]
    assert list(losses_of(tmp_path)) == list(range(1, 8))
    again = []  # the same command, as a launcher starts it again
    train(config_in(tiny_data, tmp_path, "step-4"), [Counts(again)])
    assert again == [7, 8]
    assert losses_of(tmp_path) == expected
    assert (root / "step-00000008.set-aside" / "meta.json").read_bytes() == newest
    events = [e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "went back"]
    assert [(e["step"], e["detail"]) for e in events] == [(4, "by choice; kept aside: step-00000008, step-00000006")]

    train(config_in(tiny_data, tmp_path))  # forgets the choice, so that it can be made again
    train(config_in(tiny_data, tmp_path, "step-4"))
    assert {"step-00000008.set-aside", "step-00000008.set-aside-2", "step-00000008"} <= set(names_in(root))
    assert losses_of(tmp_path) == expected


class Counts(Hook):
    name = "counts"

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def on_step_start(self, trainer: Trainer) -> None:
        self.steps.append(trainer.state.step + 1)


def test_retention_leaves_them_alone(tiny_data: TinyData, tmp_path: Path) -> None:
    train(config_in(tiny_data, tmp_path))
    train(config_in(tiny_data, tmp_path, "step-2", keep_last=1))
    assert names_in(tmp_path / "run" / "checkpoints") == [
        "step-00000004.set-aside",
        "step-00000006.set-aside",
        "step-00000008",
        "step-00000008.set-aside",
    ]


def test_on_the_nodes_disks_too(tiny_data: TinyData, tmp_path: Path) -> None:
    ephemeral = {"every_steps": None, "ephemeral_every_steps": 2, "keep_ephemeral": 9, "save_final": False}
    ephemeral |= {"local_dir": str(tmp_path / "disk")}
    train(config_in(tiny_data, tmp_path, **ephemeral))
    expected = losses_of(tmp_path)
    train(config_in(tiny_data, tmp_path, "step-4", **ephemeral))
    names = names_in(tmp_path / "disk" / "tiny")
    assert {"step-00000006.set-aside", "step-00000008.set-aside", "step-00000006", "step-00000008"} <= set(names)
    assert losses_of(tmp_path) == expected


def test_a_step_that_is_not_there_or_not_whole(tiny_data: TinyData, tmp_path: Path) -> None:
    train(config_in(tiny_data, tmp_path))
    root = tmp_path / "run" / "checkpoints"
    with pytest.raises(
        CheckpointError, match=r"has no checkpoint of step 5; available: step-8, step-6, step-4 and 1 more"
    ):
        train(config_in(tiny_data, tmp_path, "step-5"))
    shard = next((root / "step-00000004").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"step-00000004 is incomplete"):
        train(config_in(tiny_data, tmp_path, "step-4"))
    assert names_in(root) == ["step-00000002", "step-00000004", "step-00000006", "step-00000008"]


def test_from_the_command_line(tiny_data: TinyData, tmp_path: Path) -> None:
    config = config_in(tiny_data, tmp_path)
    train(config)
    command = [programs() / "glmforge"]
    subprocess.run([*command, "train", write_config(config), "--from", "6"], check=True, timeout=240)
    show = [*command, "checkpoint", "show", config.output_dir]
    shown = subprocess.run(show, capture_output=True, text=True, timeout=240, env=os.environ | {"COLUMNS": "200"})
    assert "step-00000008.set-aside" in shown.stdout
    assert "kept aside" in shown.stdout
