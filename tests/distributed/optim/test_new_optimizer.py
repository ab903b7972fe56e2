"""An optimizer is one file and one row: nothing else has to know it to train, plan, save, go on, reset or refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint import StoredTensors, latest_checkpoint
from glmforge.checkpoint.compatible import check_compatible
from glmforge.checkpoint.reset import reset_optimizer
from glmforge.config.optimizers import OPTIMIZERS
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.errors import CheckpointError
from glmforge.observe.record_files import read_jsonl
from glmforge.plan.counts.memory import training_state
from glmforge.recipes.train import train
from helpers.distributed import run_ranks
from helpers.sgd import SGD
from helpers.tiny_data import TinyData

NUM_STEPS = 5
OPTIM = {
    "matrix_optimizer": "sgd",
    "lr": 0.3,
    "schedule": "constant",
    "rules": [{"match": "*norm.weight", "optimizer": "sgd"}],
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "sgd", SGD)


def run_config(tiny_data: TinyData, output_dir: Path, num_steps: int = NUM_STEPS, **sections: Any) -> RunConfig:
    phase = {"name": "main", "steps": num_steps, "seq_len": 32, "batch_size": 8}
    return tiny_data.run_config(output_dir, **({"optim": OPTIM, "phases": [phase]} | sections))


def train_on_rank(config: RunConfig) -> None:
    OPTIMIZERS["sgd"] = SGD
    train(config)


def losses_of(config: RunConfig) -> list[float]:
    return [record["loss"] for record in read_jsonl(config.output_dir / "metrics.jsonl")]


def test_it_trains_and_goes_on_over_layouts(tiny_data: TinyData, tmp_path: Path) -> None:
    """Three steps of FSDP on two ranks, the others with TP on two ranks, against one process."""
    whole, parts = (run_config(tiny_data, tmp_path / name) for name in ("whole", "parts"))
    train(whole)
    run_ranks(train_on_rank, 2, run_config(tiny_data, parts.output_dir, num_steps=3), init_group=False)
    run_ranks(train_on_rank, 2, run_config(tiny_data, parts.output_dir, parallel={"tp": 2}), init_group=False)
    losses = losses_of(whole)
    # fp32 sums in another order, fed back through five updates
    assert losses_of(parts) == pytest.approx(losses, rel=1e-5)
    assert losses[-1] < losses[0] - 0.15  # of 6.25


def test_its_states_are_planned_and_reset(tiny_data: TinyData, tmp_path: Path) -> None:
    config = run_config(tiny_data, tmp_path / "run")
    train(config)
    checkpoint = latest_checkpoint(config.output_dir / "checkpoints")
    assert checkpoint is not None
    states = StoredTensors(checkpoint, "optim.")
    velocities = {name: tensor for name, tensor in states.items() if name.startswith("velocity.")}
    trained = parameter_table(config.model).trained()
    assert {name.removeprefix("velocity.") for name in velocities} == {
        name for name, row in trained.items() if row.family != "vector" or name.endswith("norm.weight")
    }
    like_parameters = [tensor for name, tensor in states.items() if not name.startswith("step.")]
    assert training_state(config.model, config.optim).optimizer == sum(tensor.nbytes for tensor in like_parameters)

    path, _ = reset_optimizer(checkpoint, tmp_path / "fresh")
    fresh = StoredTensors(path, "optim.")
    assert fresh.keys() == states.keys()
    assert all(torch.equal(fresh[name], torch.zeros_like(tensor)) for name, tensor in states.items())
    adamw = run_config(tiny_data, tmp_path / "run", optim={"matrix_optimizer": "adamw"})
    path, _ = reset_optimizer(checkpoint, tmp_path / "adamw", config=adamw)
    assert not any(name.startswith("velocity.") for name in StoredTensors(path, "optim."))


def test_a_run_does_not_change_to_it_or_from_it(tiny_data: TinyData, tmp_path: Path) -> None:
    usual, own = (
        run_config(tiny_data, tmp_path, optim=optim).model_dump(mode="json") for optim in ({}, OPTIM | {"rules": []})
    )
    for stored, current, change in ((usual, own, "was muon and is sgd"), (own, usual, "was sgd and is muon")):
        with pytest.raises(CheckpointError, match=f"optim.matrix_optimizer {change} .*reset-optimizer"):
            check_compatible(stored, current, {"main": 8})
