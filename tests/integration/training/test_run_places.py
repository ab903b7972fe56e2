"""Checkpoints and TensorBoard files apart from the run's directory: found from there as if they lay in it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from glmforge.checkpoint.pretrained import load_pretrained, load_with_tokenizer
from glmforge.config import RunConfig
from glmforge.errors import CheckpointError
from glmforge.recipes.train import train
from glmforge.report.report import write_report
from glmforge.runtime.lease import HeldError, Lease
from helpers.tiny_data import TinyData

PHASES = [{"name": "main", "steps": 2, "seq_len": 16, "batch_size": 2}]


def config_in(data: TinyData, tmp_path: Path, **sections: Any) -> RunConfig:
    places = {"checkpoint": {"dir": str(tmp_path / "disk" / "weights"), "every_steps": 1, "background": False}}
    observe = {"tensorboard_dir": str(tmp_path / "logs" / "tiny"), "progress": False}
    return data.run_config(tmp_path / "run", **({"phases": PHASES, "observe": observe} | places | sections))


@pytest.fixture
def run(tiny_data: TinyData, tmp_path: Path) -> Path:
    train(config_in(tiny_data, tmp_path))
    return tmp_path / "run"


def test_they_are_found_from_the_run(tiny_data: TinyData, tmp_path: Path, run: Path) -> None:
    disk = tmp_path / "disk" / "weights"
    assert sorted(path.name for path in disk.glob("step-*")) == ["step-00000001", "step-00000002"]
    assert list((tmp_path / "logs" / "tiny").glob("events.out.*"))
    by_run, tokenizer = load_with_tokenizer(run)
    by_place, same = load_with_tokenizer(disk)
    assert tokenizer is not None
    assert same is not None
    assert tokenizer.fingerprint == same.fingerprint
    assert torch.equal(by_run.lm_head.weight, by_place.lm_head.weight)
    assert not torch.equal(load_pretrained(f"{run}@1").lm_head.weight, by_run.lm_head.weight)
    assert 'href="checkpoints/step-00000002"' in write_report(run).read_text()
    assert train(config_in(tiny_data, tmp_path, phases=[PHASES[0] | {"steps": 3}])).step == 3
    assert (disk / "step-00000003").is_dir()


def test_storage_that_is_not_mounted_is_no_new_run(tiny_data: TinyData, tmp_path: Path, run: Path) -> None:
    (tmp_path / "disk" / "weights").rename(tmp_path / "elsewhere")
    for sections in ({}, {"checkpoint": {}}):
        with pytest.raises(CheckpointError, match=r"checkpoints: broken link to .*weights; mount it"):
            train(config_in(tiny_data, tmp_path, **sections))
    assert not (tmp_path / "disk" / "weights").exists()


def test_a_new_place_must_have_what_the_old_one_had(tiny_data: TinyData, tmp_path: Path, run: Path) -> None:
    new = {"checkpoint": {"dir": str(tmp_path / "new")}}
    with pytest.raises(CheckpointError, match=r"checkpoint.dir: is .*new, but the run's files are in .*weights; move"):
        train(config_in(tiny_data, tmp_path, **new))
    shutil.move(tmp_path / "disk" / "weights", tmp_path / "new")
    (tmp_path / "disk" / "weights").mkdir()  # what is mounted there now
    assert train(config_in(tiny_data, tmp_path, **new)).step == 2
    assert (run / "checkpoints").readlink() == tmp_path / "new"


def test_files_are_not_hidden_by_a_link(tiny_data: TinyData, tmp_path: Path) -> None:
    train(config_in(tiny_data, tmp_path, checkpoint={}))
    with pytest.raises(CheckpointError, match=r"checkpoint.dir: .*checkpoints already contains files; move it to"):
        train(config_in(tiny_data, tmp_path))
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_one_run_at_a_time_writes_there(tiny_data: TinyData, tmp_path: Path) -> None:
    with Lease(tmp_path / "disk" / "weights", "another run"), pytest.raises(HeldError, match="weights: in use by"):
        train(config_in(tiny_data, tmp_path))


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_a_place_in_the_run_itself(tiny_data: TinyData, tmp_path: Path, below: str) -> None:
    with pytest.raises(ValidationError, match="lies inside output_dir; remove it"):
        config_in(tiny_data, tmp_path, checkpoint={"dir": str(tmp_path / "run" / below)})
