import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from glmforge.checkpoint import (
    StoredTensors,
    load_checkpoint,
    load_latest,
    load_rng_state,
    read_meta,
    save_checkpoint,
    verify_checkpoint,
)
from glmforge.errors import CheckpointError
from helpers.checkpoints import CONFIG, assert_holds_step, blank_tensors, make_meta, make_tensors, save_steps


def test_tensors_of_every_kind_come_back_bit_equal(tmp_path):
    (path,) = save_steps(tmp_path, 120)
    tensors = blank_tensors()
    load_checkpoint(path, tensors)
    assert path == tmp_path / "step-00000120"
    assert_holds_step(tensors, 120)


def test_loads_in_place_into_parameters(tmp_path):
    saved, loaded = nn.Linear(4, 3), nn.Linear(4, 3)
    save_checkpoint(tmp_path, 1, saved.state_dict(), make_meta(1))
    weight = loaded.weight
    load_checkpoint(tmp_path / "step-00000001", dict(loaded.named_parameters()))
    assert loaded.weight is weight
    assert weight.requires_grad
    assert torch.equal(weight, saved.weight)


def test_a_slice_stores_itself_and_not_what_it_was_cut_from(tmp_path):
    path = save_checkpoint(tmp_path, 1, {"x": torch.zeros(1_000_000)[:10]}, make_meta(1))
    assert sum(file.stat().st_size for file in path.iterdir()) < 100_000


def test_meta_comes_back_with_what_the_machine_adds(tmp_path):
    meta = make_meta(
        7,
        samples_consumed={"pretrain": 64, "midtrain": 3},
        hooks={"spike": {"best": float("inf"), "last": 0.1}},
    )
    path = save_checkpoint(tmp_path, 7, make_tensors(7), meta)
    assert load_checkpoint(path, blank_tensors()) == meta
    content = json.loads((path / "meta.json").read_text())
    assert content["samples_consumed"] == {"pretrain": 64, "midtrain": 3}
    assert content["versions"]["torch"] == torch.__version__
    assert content["world_size"] == 1
    assert content["created"].endswith("+00:00")


def test_generator_state_comes_back(tmp_path):
    generator = torch.Generator().manual_seed(5)
    path = save_checkpoint(tmp_path, 1, {}, make_meta(1), rng_state=generator.get_state())
    expected = torch.rand(3, generator=generator)
    resumed = torch.Generator()
    resumed.set_state(load_rng_state(path))
    assert torch.equal(torch.rand(3, generator=resumed), expected)
    load_checkpoint(path, {})  # the state is no tensor that the run has to have a place for


@pytest.mark.parametrize("changes", [{}, {"world_size": 2}], ids=["none saved", "other world size"])
def test_no_generator_state(tmp_path, changes):
    rng_state = torch.get_rng_state() if changes else None
    path = save_checkpoint(tmp_path, 1, {}, make_meta(1, **changes), rng_state=rng_state)
    assert load_rng_state(path) is None


def test_the_same_step_is_replaced(tmp_path):
    save_steps(tmp_path, 3)
    save_checkpoint(tmp_path, 3, make_tensors(30), make_meta(3, phase="again"))
    tensors = blank_tensors()
    path, meta = load_latest(tmp_path, tensors)
    assert meta.phase == "again"
    assert_holds_step(tensors, 30)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_load_by_prefix_takes_that_part_only(tmp_path):
    (path,) = save_steps(tmp_path, 1)
    model = {name: t for name, t in blank_tensors().items() if name.startswith("model.")}
    load_checkpoint(path, model, prefix="model.")
    assert torch.equal(model["model.weight"], make_tensors(1)["model.weight"])


def test_nothing_is_loaded_where_there_is_nothing(tmp_path):
    assert load_latest(tmp_path / "absent", blank_tensors()) is None


def _without(name):
    return {n: t for n, t in blank_tensors().items() if n != name}


MISFITS = {
    "missing": (blank_tensors() | {"model.new": torch.zeros(1)}, r"it lacks 1 tensor: model\.new"),
    "unexpected": (_without("model.weight"), r"this run lacks: model\.weight"),
    "shape": (
        blank_tensors() | {"model.weight": torch.zeros(16, 9)},
        r"model\.weight is \[16, 8\] there and \[16, 9\] here",
    ),
    "dtype": (
        blank_tensors() | {"model.bf16": torch.zeros(5, 3)},
        r"model\.bf16 is torch\.bfloat16 there and torch\.float32 here",
    ),
    "many": (
        blank_tensors() | {f"model.layers.{i}": torch.zeros(1) for i in range(9)},
        r"it lacks 9 tensors: model\.layers\.0, model\.layers\.1, model\.layers\.2 and 6 more",
    ),
}


@pytest.mark.parametrize(("tensors", "message"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_refused_untouched(tmp_path, tensors, message):
    (path,) = save_steps(tmp_path, 1)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, tensors)
    assert all(torch.equal(tensors[name], before[name]) for name in before)


def test_a_misfit_names_the_fields_that_differ(tmp_path):
    (path,) = save_steps(tmp_path, 1)
    other = {"name": "other", "model": {"hidden_size": 8, "num_hidden_layers": 3}}
    with pytest.raises(CheckpointError, match=r"model\.num_hidden_layers was 2 and is 3 .*; undo that"):
        load_checkpoint(path, {}, config=other)
    with pytest.raises(CheckpointError, match="configurations match, so the code differs: it was"):
        load_checkpoint(path, {}, config=CONFIG)


def test_stored_tensors_read_one_by_one(tmp_path):
    (path,) = save_steps(tmp_path, 4)
    stored = StoredTensors(path, "model.")
    expected = {n.removeprefix("model."): t for n, t in make_tensors(4).items() if n.startswith("model.")}
    assert set(stored) == set(expected)
    assert len(stored) == len(expected)
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())
    assert stored.shape("weight") == (16, 8)
    assert "optim.step" not in stored


def test_everything_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """A power failure keeps what was forced to the disk: so all files, then the directory, then its name."""
    events = []
    fsync, rename = os.fsync, Path.rename

    def recording_fsync(descriptor):
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def recording_rename(self, target):
        events.append(f"{self.name} -> {Path(target).name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "rename", recording_rename)
    (path,) = save_steps(tmp_path / "checkpoints", 1)
    naming = next(i for i, event in enumerate(events) if event.endswith(f"-> {path.name}"))
    partial = events[naming].split(" -> ")[0]
    assert {file.name for file in path.iterdir()} == {
        ".metadata",
        "__0_0.distcp",
        "meta.json",
        "manifest.json",
    }
    forced = {name.removesuffix(".tmp") for name in events[:naming]}  # DCP renames its metadata when it is written
    assert {file.name for file in path.iterdir()} <= forced
    assert events[naming - 1] == partial
    assert events[naming + 1] == "checkpoints"


def test_meta_of_a_newer_format_is_refused(tmp_path):
    (path,) = save_steps(tmp_path, 1)
    content = json.loads((path / "meta.json").read_text()) | {"format_version": 2, "news": 1}
    (path / "meta.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="this one reads format 1"):
        read_meta(path)
    assert verify_checkpoint(path)
