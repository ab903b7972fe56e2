"""A checkpoint of adapters of which something is missing, damaged or foreign: one line each, and nothing is loaded."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glmforge.checkpoint import load_latest, verify_checkpoint
from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.format.manifest import MANIFEST_FILE, read_manifest, record_file, write_manifest
from glmforge.checkpoint.format.store import checkpoint_path
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from helpers.adapters import blank, make_info, whole_tensors
from helpers.checkpoints import make_meta

FILES = [
    "adapter_config.json",
    "adapter_model.rank0.safetensors",
    "meta.json",
    "metadata.json",
    "training_state.rank0.safetensors",
]


def save(root: Path, *steps: int, mode: str = "full") -> Path:
    saver = AdapterSaver(root, CheckpointConfig(keep_last=9), whole_tensors(0), make_info(mode), run_name="test")
    for step in steps:
        saver.save(step, whole_tensors(step), make_meta(step), durable=True)
    return checkpoint_path(root, steps[-1])


def believed(path: Path) -> None:
    """Make the manifest say that the files are as they are: whoever changed them may have done that."""
    write_manifest(
        path, {name: record_file(path / name) for name in read_manifest(path).files if (path / name).exists()}
    )


def remove(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((file, flip) for file in FILES),
        (FILES[1], remove),
        (FILES[1], cut),
        (MANIFEST_FILE, remove),
        (MANIFEST_FILE, cut),
    ],
)
def test_whatever_file_is_damaged_the_one_before_is_taken(tmp_path, file, damage, caplog):
    path = save(tmp_path, 1, 2)
    damage(path / file)
    problems = verify_checkpoint(path)
    assert len(problems) == 1
    assert "\n" not in problems[0]
    assert file in problems[0]
    tensors = blank(whole_tensors(0))
    assert load_latest(tmp_path, tensors)[0] == checkpoint_path(tmp_path, 1)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in whole_tensors(1).items())


@pytest.mark.parametrize("file", FILES[1:2] + FILES[3:])
@pytest.mark.parametrize("change", ["removed", "cut", "of another run"])
def test_a_manifest_that_agrees_does_not_make_files_fit(tmp_path, file, change):
    path = save(tmp_path / "run", 1)
    if change == "removed":
        (path / file).unlink()
    elif change == "cut":
        cut(path / file)
    else:
        (path / file).write_bytes((other(tmp_path / "other") / file).read_bytes())
    believed(path)
    problems = verify_checkpoint(path)
    assert len(problems) == 1
    assert "\n" not in problems[0]
    tensors = blank(whole_tensors(0))
    with pytest.raises(CheckpointError):
        load_latest(tmp_path / "run", tensors)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in blank(whole_tensors(0)).items())


def other(root: Path) -> Path:
    """Of adapters of a higher rank."""
    tensors: dict[str, Tensor] = {name: torch.cat([t, t]) if t.dim() else t for name, t in whole_tensors(1).items()}
    saver = AdapterSaver(root, CheckpointConfig(), tensors, make_info(), run_name="test")
    saver.save(1, tensors, make_meta(1), durable=True)
    return checkpoint_path(root, 1)


LIES = {
    "slices that overlap": (lambda d: first(d)["offsets"].__setitem__(0, 1), "do not make up"),
    "a tensor that is larger": (lambda d: tensor(d)["shape"].__setitem__(0, 99), "do not make up"),
    "another type": (lambda d: tensor(d).__setitem__("dtype", "BF16"), "of torch.float32"),
    "an unknown type": (lambda d: tensor(d).__setitem__("dtype", "F4"), "metadata.json: tensors"),
    "a tensor without slices": (lambda d: d["tensors"].__setitem__("model.x", dict(tensor(d))), "do not make up"),
    "a slice less": (lambda d: d["shards"][0]["slices"].pop(next(iter(d["shards"][0]["slices"]))), "holds .* too"),
    "another number of shards": (lambda d: d.__setitem__("num_shards", 2), "describes 1 shards, but num_shards is 2"),
    "a later format": (lambda d: d.__setitem__("format_version", 9), "use a newer glmforge"),
    "another format": (lambda d: d.__setitem__("format", "lora"), "metadata.json: format"),
}


def first(description: dict) -> dict:
    return next(iter(description["shards"][0]["slices"].values()))


def tensor(description: dict) -> dict:
    return description["tensors"][next(iter(description["shards"][0]["slices"]))]


@pytest.mark.parametrize(("lie", "expected"), LIES.values(), ids=list(LIES))
def test_a_description_that_lies_is_refused(tmp_path, lie, expected):
    path = save(tmp_path, 1, mode="lite")
    description = json.loads((path / "metadata.json").read_text())
    description["shards"][0]["slices"] = dict(sorted(description["shards"][0]["slices"].items(), reverse=True))
    lie(description)
    (path / "metadata.json").write_text(json.dumps(description))
    believed(path)
    problems = verify_checkpoint(path)
    assert len(problems) == 1
    assert re.search(expected, problems[0]), problems
