"""`glmforge adapter`, from a run's directory to what others load."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from glmforge.checkpoint.adapter.saver import AdapterSaver
from glmforge.checkpoint.format.manifest import read_manifest, record_file, write_manifest
from glmforge.cli.app import app
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from helpers.adapters import SHAPES, make_info, whole_tensors
from helpers.checkpoints import make_meta


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output + str(result.exception)
    return result.output


def save(run_dir: Path, **config: object) -> None:
    settings = CheckpointConfig.model_validate(config)
    saver = AdapterSaver(run_dir / "checkpoints", settings, whole_tensors(0), make_info(), run_name=run_dir.name)
    saver.save(3, whole_tensors(3), make_meta(3), durable=True)


def test_show_names_base_tensors_and_counts(tmp_path):
    save(tmp_path / "lora")
    shown = run("adapter", "show", tmp_path / "lora")
    assert "models/base" in shown
    assert "model.layers.*.self_attn.q_proj.lora_A.weight" in shown
    assert f"{sum(torch.Size(shape).numel() for shape in SHAPES.values()):,} parameters in 6 tensors" in shown
    assert "rank 4, mode full, 1 shards" in run("checkpoint", "show", tmp_path / "lora" / "checkpoints/step-00000003")
    assert "whole" in run("checkpoint", "verify", tmp_path / "lora")
    assert run("checkpoint", "diff", *[tmp_path / "lora/checkpoints/step-00000003"] * 2).startswith("equal")


def forge(path: Path) -> None:
    """A tensor of 10^18 numbers, in a description that the manifest believes."""
    file = path / "metadata.json"
    description = json.loads(file.read_text())
    next(iter(description["tensors"].values()))["shape"] = [10**9, 10**9]
    file.write_text(json.dumps(description))
    write_manifest(path, {name: record_file(path / name) for name in read_manifest(path).files})


def flip(path: Path) -> None:
    file = path / "adapter_model.rank0.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def cut(path: Path) -> None:
    file = path / "adapter_model.rank0.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (forge, "do not make up"),
        (flip, "SHA-256 differs"),
        (cut, "8 bytes shorter"),
        (lambda path: (path / "training_state.rank0.safetensors").unlink(), "missing"),
        (lambda path: (path / "metadata.json").write_text("{"), "SHA-256|metadata.json"),
    ],
)
def test_show_refuses_what_is_damaged_in_one_line(tmp_path, damage, reason):
    save(tmp_path / "lora")
    path = tmp_path / "lora" / "checkpoints" / "step-00000003"
    damage(path)
    result = CliRunner().invoke(app, ["adapter", "show", str(path)])
    assert isinstance(result.exception, CheckpointError)  # which `main` prints, and exits with 1
    assert re.search(reason, str(result.exception))
    assert "\n" not in str(result.exception)
    assert not result.output


def test_gathered_converted_and_back(tmp_path):
    save(tmp_path / "lora", local_dir=str(tmp_path / "disk"))
    assert not list((tmp_path / "lora" / "checkpoints").glob("step-*"))
    gathered = run("adapter", "gather", tmp_path / "lora", "--local-dir", tmp_path / "disk")
    assert "whole" in gathered
