"""The FLOPs that a run records are those that its steps do, by torch's own count of every operator."""

from typing import Any

import pytest
import torch

from glmforge.backend.native import NativeBackend
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.world import World
from glmforge.plan.counts.flops import mean_attended_length, train_flops_per_token
from glmforge.training.step import train_step
from helpers.flops import flop_counter, flops_by_operator
from helpers.models import run_config

DOCUMENTS = ((32, 32), (48, 16))
"""Lengths within each row, of a batch of packed rows."""
NUM_ROWS, SEQ_LEN = 2, 64
ATTENTION = ("aten.bmm",)
"""On the CPU attention multiplies batches of heads, and nothing else does: AdamW trains."""
RULES: dict[str, list[dict[str, Any]]] = {
    "trained whole": [],
    "head frozen": [{"match": "lm_head.weight", "lr_scale": 0.0}],
    "experts and router frozen": [{"match": "*.mlp.*", "lr_scale": 0.0}],
    "the lower layers frozen": [
        {"match": "model.embed_tokens.weight", "lr_scale": 0.0},
        {"match": "model.layers.[012].*", "lr_scale": 0.0},
    ],
    "one map trained": [{"match": "*layers.1.self_attn.v_proj*", "lr_scale": 1.0}, {"match": "*", "lr_scale": 0.0}],
}


def config_of(rules: list[dict[str, Any]], mtp_loss_weight: float, recompute: str = "none") -> RunConfig:
    phase = {"name": "main", "steps": 1, "seq_len": SEQ_LEN, "batch_size": NUM_ROWS, "aux_loss_weight": 0.0}
    return run_config(
        phases=[phase | {"mtp_loss_weight": mtp_loss_weight}],
        optim={"matrix_optimizer": "adamw", "rules": rules},
        parallel={"recompute": recompute},
    )


def counted(config: RunConfig) -> tuple[int, int]:
    """FLOPs of one real step: of everything but attention, and of attention."""
    backend = NativeBackend.build(config, World.single("cpu"))
    backend.model.train()
    ids_BS = torch.randint(0, config.model.vocab_size, (NUM_ROWS, SEQ_LEN), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids_BS, ids_BS.clone(), DOCUMENTS, (0,) * NUM_ROWS, (0,) * NUM_ROWS)
    objective = NextTokenObjective(config.phases[0], config.model.num_nextn_predict_layers)
    with flop_counter() as counter:
        train_step(backend, objective, [batch], lr=1e-3, grad_clip=1.0, router_bias_rate=0.0)
    by_operator = flops_by_operator(counter)
    attention = sum(by_operator.pop(name, 0) for name in ATTENTION)
    return sum(by_operator.values()), attention


@pytest.mark.parametrize("mtp_loss_weight", [0.3, 0.0], ids=["MTP", "no MTP"])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_recorded_flops_are_those_of_a_step(rules: list[dict[str, Any]], mtp_loss_weight: float) -> None:
    """Of matmuls to the last one. Attention's blocks of 32 queries also compute the half of their diagonal that the
    mask hides: with documents of 16 to 48 tokens 0.4 to 0.9 times as much again."""
    config = config_of(rules, mtp_loss_weight)
    matmuls, attention = counted(config)

    def expected(mean_attended: float) -> float:
        with_mtp = config.phases[0].mtp_loss_weight > 0
        return train_flops_per_token(config.model, mean_attended, with_mtp, optim=config.optim) * NUM_ROWS * SEQ_LEN

    assert matmuls == expected(0)
    length = mean_attended_length(length for row in DOCUMENTS for length in row)
    assert 1 < attention / (expected(length) - expected(0)) < 2


def test_recomputed_layers_are_done_again_but_not_counted() -> None:
    """By the planner: the model's work is that without recomputation, and torch ends one with the last tensor that the
    backward pass wants."""
    (once, _), (again, _) = (counted(config_of([], 0.0, recompute)) for recompute in ("none", "full"))
    assert 1.2 < again / once < 4 / 3
