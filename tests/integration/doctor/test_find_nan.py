"""find-nan names what was planted: a weight, an optimizer moment, a sample; and does not touch the run."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.config import RunConfig
from glmforge.doctor.find_nan import FindNanError, find_nan
from glmforge.recipes.train import train
from glmforge.training.errors import DivergedError
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.tiny_data import TinyData

EMBEDDING = "model.model.embed_tokens.weight"


class Plants(Hook):
    """Changes the run's tensors after step 4, before they are saved; notes what each step was trained on."""

    name = "plants"

    def __init__(self, change: Callable[[dict[str, torch.Tensor]], None] | None = None) -> None:
        self.change, self.ids = change, {}

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        assert trainer.batch is not None
        self.ids[trainer.state.step] = trainer.batch.ids_BS
        if trainer.state.step == 4 and self.change is not None:
            with torch.no_grad():
                self.change(trainer.backend.state_tensors())


def config_in(data: TinyData, directory: Path, **sections: Any) -> RunConfig:
    return data.run_config(
        directory,
        phases=[{"name": "main", "steps": 8, "seq_len": 32, "batch_size": 8}],
        checkpoint={"every_steps": 2, "keep_last": 9, "background": False},
        parallel={"micro_batch_size": 4},
        fault_tolerance={"max_nonfinite_steps": 0},
        **sections,
    )


def broken_run(
    data: TinyData, directory: Path, change: Callable[[dict[str, torch.Tensor]], None], **sections: Any
) -> Path:
    with pytest.raises(DivergedError):
        train(config_in(data, directory, **sections), [Plants(change)])
    for path in (directory / "checkpoints").iterdir():
        if path.name > "step-00000004":  # saved after the planted one: not what this test is about
            path.rename(path.with_name(f".gone-{path.name}"))
    return directory


def digest(root: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        found.update(f"{path} {path.lstat().st_mtime_ns}".encode() + (path.read_bytes() if path.is_file() else b""))
    return found.hexdigest()


def test_a_weight(tiny_data: TinyData, tmp_path: Path) -> None:
    name = "model.model.layers.1.mlp.experts.down_proj"

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][1, 2, 3] = float("nan")

    found = find_nan(broken_run(tiny_data, tmp_path / "run", change))
    assert (found.cause, found.checkpoint) == ("weight", "step-00000004")
    assert [(bad.name, bad.element, bad.value, bad.count) for bad in found.tensors] == [(name, [1, 2, 3], "nan", 1)]
    assert found.notes == ["finite in step-00000002; 'find-nan --step 4' replays the steps since"]
    again = find_nan(tmp_path / "run", 4)  # nothing in the computation made it
    assert (again.cause, again.checkpoint) == ("nothing", "step-00000002")


def test_an_optimizer_moment(tiny_data: TinyData, tmp_path: Path) -> None:
    planted = []

    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = next(n for n in tensors if n.startswith("optim.") and n.endswith("layers.0.self_attn.q_proj.weight"))
        planted.append(name)
        tensors[name][5, 0] = float("inf")

    found = find_nan(broken_run(tiny_data, tmp_path / "run", change))
    assert (found.cause, found.step) == ("optimizer state", 6)
    assert [(bad.name, bad.element, bad.value) for bad in found.tensors] == [(planted[0], [5, 0], "inf")]


def test_a_sample_by_a_token_that_it_alone_has(tiny_data: TinyData, tmp_path: Path) -> None:
    """With an epsilon that is 0 in fp32, RMSNorm of a row of zeros is 0 / 0: the token's embedding is such a row."""
    model = tiny_data.run_config(tmp_path).model.model_dump() | {"rms_norm_eps": 1e-60, "num_nextn_predict_layers": 0}
    seen = Plants()
    train(config_in(tiny_data, tmp_path / "before", model=model), [seen])
    earlier = set(torch.cat([seen.ids[step] for step in range(1, 6)]).flatten().tolist())
    row, position, token = next(
        (row, position, token)
        for row, ids in enumerate(seen.ids[6].tolist())
        for position, token in enumerate(ids)
        if token not in earlier and (seen.ids[6] == token).sum() == 1
    )

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[EMBEDDING][token] = 0.0

    run = broken_run(tiny_data, tmp_path / "run", change, model=model)
    before = digest(run)
    found = find_nan(run)
    assert (found.cause, found.step, found.checkpoint) == ("forward", 6, "step-00000004")
    (sample,) = found.samples
    assert (sample["batch_row"], sample["sample"], sample["source"]) == (row, 5 * 8 + row, "text")
    assert (sample["position"], sample["token_id"]) == (position, token)
    assert found.module == "model.layers.0.input_layernorm"
    assert found.operation
    assert found.line.startswith(("kernels/rms_norm.py", "model/layers.py"))
    assert digest(run) == before


def test_a_run_without_such_a_step(tiny_data: TinyData, tmp_path: Path) -> None:
    train(config_in(tiny_data, tmp_path / "run"))
    with pytest.raises(FindNanError, match="pass --step N"):
        find_nan(tmp_path / "run")
    assert find_nan(tmp_path / "run", 4).cause == "nothing"
