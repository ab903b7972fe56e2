"""Weights that rules freeze: held in bf16 where that is asked for, and nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from glmforge.checkpoint.pretrained import load_pretrained, open_checkpoint
from glmforge.checkpoint.reset import reset_optimizer
from glmforge.config import RunConfig
from glmforge.config.layout import resolve_layout
from glmforge.dryrun.run import dry_run
from glmforge.errors import CheckpointError
from glmforge.observe.record_files import read_jsonl
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World
from glmforge.plan.cost.storage import storage_of
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.recipes.train import train
from helpers.distributed import run_ranks
from helpers.models import run_config
from helpers.tiny_data import TinyData

MAPS = ["*_proj", "*_proj.weight", "model.embed_tokens.weight", "lm_head.weight", "*layernorm.weight"]
PHASES = [{"name": "main", "steps": 3, "seq_len": 16, "batch_size": 4}]


def frozen(held: str, *patterns: str, **sections: Any) -> dict[str, Any]:
    rules = [{"match": match, "lr_scale": 0.0} for match in patterns or MAPS]
    optim = {"lr": 1e-2, "warmup_steps": 0, "rules": rules}
    return {"optim": optim, "precision": {"compute": "bf16", "frozen": held}} | sections


def test_only_what_is_frozen_is_held_in_bf16() -> None:
    config = run_config(**frozen("bf16", "*.experts.*", "*.mlp.gate.weight"))
    model = build_model(config, World.single("cpu"))
    for name, tensor in model.state_dict().items():
        halved = ".experts." in name or name.endswith("mlp.gate.weight")
        assert tensor.dtype == (torch.bfloat16 if halved else torch.float32), name
    held = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert held == {name for name, tensor in model.state_dict().items() if tensor.dtype == torch.bfloat16}


@pytest.mark.parametrize("parallel", [{}, {"dp_shard": 2, "ep": 2}, {"dp_shard": 1, "tp": 2}])
def test_losses_are_the_same_to_the_bit(tiny_data: TinyData, tmp_path: Path, parallel: dict[str, int]) -> None:
    """Every map casts its weight to the type it computes in, whichever it is held in."""

    def losses(held: str) -> list[tuple[float, float]]:
        config = tiny_data.run_config(tmp_path / held, phases=PHASES, parallel=parallel, **frozen(held))
        if parallel:
            run_ranks(train, 2, config, init_group=False)
        else:
            train(config)
        records = read_jsonl(tmp_path / held / "metrics.jsonl")
        return [(record["loss"], record["grad_norm"]) for record in records]

    assert losses("bf16") == losses("fp32")


def test_a_checkpoint_holds_them_so(tiny_data: TinyData, tmp_path: Path) -> None:
    saves = {"checkpoint": {"every_steps": 1, "background": False}}
    whole = tiny_data.run_config(tmp_path / "whole", phases=PHASES, **frozen("bf16", **saves))
    train(whole)
    stored = open_checkpoint(tmp_path / "whole")
    assert stored.weights["lm_head.weight"].dtype == torch.bfloat16
    assert sum(tensor.nbytes for tensor in stored.weights.values()) == storage_of(whole).weights
    assert load_pretrained(tmp_path / "whole").lm_head.weight.dtype == torch.float32

    part = tiny_data.run_config(tmp_path / "part", phases=PHASES, **frozen("bf16", **saves))
    train(part)
    train(part.model_copy(update={"fault_tolerance": part.fault_tolerance.model_copy(update={"resume": "step-1"})}))
    losses = [[r["loss"] for r in read_jsonl(tmp_path / run / "metrics.jsonl")] for run in ("whole", "part")]
    assert losses[0] == losses[1]
    assert reset_optimizer(tmp_path / "whole", tmp_path / "reset").path.is_dir()

    other = tiny_data.run_config(tmp_path / "part", phases=PHASES, **frozen("fp32", **saves))
    with pytest.raises(
        CheckpointError,
        match=r"precision.frozen was bf16 and is fp32 \(frozen weights are stored in "
        r"this format",
    ):
        train(other)
    begun = tiny_data.run_config(tmp_path / "new", init_from=str(tmp_path / "whole"), phases=PHASES, **frozen("fp32"))
    train(begun)  # a new run may hold them otherwise
    assert open_checkpoint(tmp_path / "new").weights["lm_head.weight"].dtype == torch.float32


def test_plan_and_dry_run_know_it() -> None:
    def config(held: str) -> RunConfig:
        return run_config(**frozen(held), phases=[PHASES[0] | {"seq_len": 64}])

    found = {}
    for held in ("bf16", "fp32"):
        planned = estimate_memory(config(held), resolve_layout(config(held), 2)).fullest.at_peak
        (place,) = dry_run(config(held), 2).classes
        found[held] = place.findings.held[Purpose.WEIGHTS]
        assert planned[Purpose.WEIGHTS] == found[held]
    assert found["bf16"] < 0.6 * found["fp32"]


def test_fp32_compute_is_refused() -> None:
    with pytest.raises(ValidationError, match="'bf16' would be converted in every step; set compute to bf16 too"):
        run_config(precision={"compute": "fp32", "frozen": "bf16"})
