"""A small run's experts and the sizes of its checkpoint, each against what was planted."""

import json
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint.format.meta import META_FILE
from glmforge.checkpoint.sizes import sizes_by_kind
from glmforge.doctor.experts import ExpertsError, examine_experts
from glmforge.recipes.train import train
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.planted import renew_manifest
from helpers.tiny_data import TinyData, make_tiny_data

PREFIX = "model.model.layers.2.mlp."


class Twins(Hook):
    """Gives expert 3 of a layer expert 1's weights, and a bias so low that no token goes there."""

    name = "twins"

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        tensors = trainer.backend.state_tensors()
        with torch.no_grad():
            for part in ("gate_up_proj", "down_proj"):
                packed = tensors[f"{PREFIX}experts.{part}"]
                packed[3] = packed[1] * 0.5
            tensors[f"{PREFIX}gate.e_score_correction_bias"][3] -= 5.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    data: TinyData = make_tiny_data(directory / "data")
    phases = [{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 4}]
    config = data.run_config(
        directory / "run", phases=phases, checkpoint={"every_steps": 2, "keep_last": 9, "background": False}
    )
    train(config, [Twins()])
    records = (directory / "run" / "metrics.jsonl").read_text().splitlines()
    # Only the last record is of a step in which the bias was low from the start; the first was routed before.
    (directory / "run" / "metrics.jsonl").write_text("".join(f"{line}\n" for line in records[1:]))
    return directory / "run"


def test_experts(run: Path) -> None:
    report = examine_experts(run)
    assert (report.checkpoint, report.compared_with) == ("step-00000004", "step-00000002")
    layers = {layer.layer: layer for layer in report.layers}
    assert 0 not in layers  # a dense layer
    planted = layers.pop(2)
    assert planted.similar is not None
    assert planted.similar[0] == (1, 3, pytest.approx(1.0, abs=1e-3))
    assert planted.bias_drift == pytest.approx(10, abs=0.1)
    assert all(layer.similar is None or layer.similar[0][2] < 0.9 for layer in layers.values())
    if report.load_steps:
        assert planted.dead == [3]
        assert sum(planted.load_E) == pytest.approx(len(planted.load_E), abs=1e-2)


def test_experts_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(ExpertsError, match="train longer"):
        examine_experts(tmp_path)


def test_sizes(run: Path) -> None:
    checkpoint = run / "checkpoints" / "step-00000004"
    kinds = sizes_by_kind(checkpoint)
    assert {"weights, fp32 master", "router biases", "RNG", "optimizer momentum, fp32"} <= {kind.kind for kind in kinds}
    assert [kind for kind in kinds if kind.differs] == []
    assert sum(kind.actual for kind in kinds) == sum(
        file.stat().st_size for file in checkpoint.iterdir() if file.name != "manifest.json"
    )


def test_sizes_that_are_not_as_expected(run: Path) -> None:
    """The configuration says another optimizer than the one whose moments are there."""
    checkpoint = run / "checkpoints" / "step-00000002"
    meta = json.loads((checkpoint / META_FILE).read_text())
    meta["config"]["optim"]["matrix_optimizer"] = "adamw"
    (checkpoint / META_FILE).write_text(json.dumps(meta))
    renew_manifest(checkpoint)
    differing = {kind.kind for kind in sizes_by_kind(checkpoint) if kind.differs}
    assert "optimizer momentum, fp32" in differing
    assert "weights, fp32 master" not in differing
