"""Parameters put into the model from outside are laid out and their gradients summed by their rows of the table alone.

Pairs of low rank are planted beside a map that tp cuts by outputs (q), one that it cuts by inputs (o), one that it
leaves whole (an MTP layer's `eh_proj`) and both of the packed experts'. Each pair has a half that is whole where its
map is cut, so its gradient is a partial sum: over tp in any layout (q, o), under sequence parallelism only (`eh_proj`),
or over ep (what all experts share). What the equivalence suite compares is compared with one process, to its tolerance.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from glmforge.config.layout import resolve_layout
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import COMPLETE, OWN_SHARE, OWN_TOKENS, Parameter, Shape
from glmforge.model.layers import matmul
from glmforge.model.placement import local
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.world import World, join_world
from helpers.distributed import RankFailure, run_ranks
from helpers.equivalence import Case, differences, run_case

RANK = 2
TOLERANCE = 1e-5  # that of test_equivalence.py, for the reasons given there

LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {"tp": 2, "sequence_parallel": False}),
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}),
    (4, {"pp": 2, "cp": 2, "ep": 2, "micro_batch_size": 2}),
]
ALONE: list[tuple[int, dict[str, Any]]] = [
    (2, {"tp": 2}),
    (2, {"ep": 2}),
    (2, {"dp_shard": 2}),
    (2, {"pp": 2, "micro_batch_size": 2}),
]
"""Each axis by itself, all of them in a combination above: for the whole matrix."""


class LowRank(nn.Module):
    """In the place of a map's matmul: it, and `B A x` added to it; A or B may have a matrix for each expert."""

    def __init__(self, a_shape: Shape, b_shape: Shape) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(torch.empty(a_shape)), nn.Parameter(torch.empty(b_shape))

    def forward(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        y = x
        for factor in (self.A, self.B):
            y = matmul(y, local(factor), counts_E=counts_E if factor.dim() == 3 else None)
        return matmul(x, weight, bias=bias, counts_E=counts_E) + y


def plant(model: GlmMoe) -> None:
    """Put the pairs into a section."""
    for layer in model.layers:
        _plant(layer.self_attn.q_proj, "matmul", layer.self_attn.q_proj.weight)
        _plant(layer.self_attn.o_proj, "matmul", layer.self_attn.o_proj.weight)
    for layer in model.mtp_layers:
        _plant(layer.eh_proj, "matmul", layer.eh_proj.weight)
    for moe in model.moe_layers.values():
        experts = moe.experts
        num_experts, num_rows, num_columns = experts.gate_up_proj.shape
        experts.gate_up_matmul = LowRank((RANK, num_columns), (num_experts, num_rows, RANK))
        num_experts, num_rows, num_columns = experts.down_proj.shape
        experts.down_matmul = LowRank((num_experts, RANK, num_columns), (num_rows, RANK))


def _plant(module: nn.Module, attribute: str, weight: Tensor) -> None:
    num_rows, num_columns = weight.shape
    setattr(module, attribute, LowRank((RANK, num_columns), (num_rows, RANK)))


def rows_of(config: ModelConfig) -> list[Parameter]:
    """What `plant` puts into the whole model."""
    d, e, i = config.hidden_size, config.n_routed_experts, config.moe_intermediate_size
    heads = config.num_attention_heads * config.head_dim
    num_layers, first_moe = config.num_hidden_layers, config.first_k_dense_replace
    rows = []
    for layer in range(num_layers + config.num_nextn_predict_layers):
        prefix = f"model.layers.{layer}."
        rows += [
            row(f"{prefix}self_attn.q_proj.matmul.A", (RANK, d), partial=OWN_SHARE),
            row(f"{prefix}self_attn.q_proj.matmul.B", (heads, RANK), tp_dim=0),
            row(f"{prefix}self_attn.o_proj.matmul.A", (RANK, heads), tp_dim=1),
            row(f"{prefix}self_attn.o_proj.matmul.B", (d, RANK), partial=OWN_SHARE),
        ]
        if layer >= first_moe:
            rows += [
                row(f"{prefix}mlp.experts.gate_up_matmul.A", (RANK, d), partial={"ep": "always"}),
                row(f"{prefix}mlp.experts.gate_up_matmul.B", (e, 2 * i, RANK), expert=True),
                row(f"{prefix}mlp.experts.down_matmul.A", (e, RANK, i), expert=True),
                row(f"{prefix}mlp.experts.down_matmul.B", (d, RANK), partial={"ep": "always"}),
            ]
        if layer >= num_layers:
            rows += [
                row(f"{prefix}eh_proj.matmul.A", (RANK, 2 * d), partial=OWN_TOKENS),
                row(f"{prefix}eh_proj.matmul.B", (d, RANK), partial=OWN_TOKENS),
            ]
    return rows


def row(name: str, shape: Shape, **how: Any) -> Parameter:
    fields = {"family": "matrix", "initial": "normal", "tp_dim": None, "partial": COMPLETE}
    return Parameter(name=name, shape=shape, **(fields | how))


@cache
def single() -> dict[str, Tensor]:
    config = Case({}, 1).config(single=True)
    world = World(0, 1, torch.device("cpu"), resolve_layout(config, 1))
    return run_case(config, world, rows=rows_of(config.model), extend=plant)


def on_ranks(case: Case, wrong: dict[str, dict[str, Any]]) -> dict[str, Tensor]:
    """On this rank, with rows changed by the ends of their names."""
    config = case.config(single=False)
    rows = [replace(row, **_change_of(row, wrong)) for row in rows_of(config.model)]
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        results = run_case(config, world, rows=rows, extend=plant)
        return results if world.is_main else {}


def _change_of(row: Parameter, wrong: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return next((change for end, change in wrong.items() if row.name.endswith(end)), {})


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [*LAYOUTS, *(pytest.param(*layout, marks=pytest.mark.full) for layout in ALONE)],
    ids=lambda value: str(value),
)
def test_declared_pairs_are_trained_as_on_one_process(world_size: int, parallel: dict[str, Any]) -> None:
    case = Case(parallel, world_size)
    actual = run_ranks(on_ranks, world_size, case, {}, timeout_s=300)[0]
    assert all((actual[f"gradient.{row.name}"] != 0).any() for row in rows_of(case.config(single=True).model))
    errors = differences(actual, single())
    assert {name: error for name, error in errors.items() if error > TOLERANCE} == {}


WRONG: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "not summed, cut by outputs": ({"tp": 2}, "q_proj.matmul.A", {"partial": COMPLETE}),
    "not summed, cut by inputs": ({"tp": 2}, "o_proj.matmul.B", {"partial": COMPLETE}),
    "not summed, own tokens": ({"tp": 2}, "eh_proj.matmul.A", {"partial": COMPLETE}),
    "summed, same tokens": ({"tp": 2, "sequence_parallel": False}, "eh_proj.matmul.A", {"partial": OWN_SHARE}),
    "not summed, all experts'": ({"ep": 2}, "gate_up_matmul.A", {"partial": COMPLETE}),
}


@pytest.mark.parametrize(("parallel", "end", "change"), WRONG.values(), ids=WRONG)
def test_a_wrong_row_shows_in_the_gradient(parallel: dict[str, Any], end: str, change: dict[str, Any]) -> None:
    case = Case(parallel, 2)
    try:
        actual = run_ranks(on_ranks, 2, case, {end: change}, timeout_s=300)[0]
    except RankFailure as failure:
        if f"{end}: ranks that hold copies of a part differ" not in str(failure):
            raise
        return
    errors = differences(actual, single())
    assert max(error for name, error in errors.items() if name.startswith("gradient.") and name.endswith(end)) > 1e-2
