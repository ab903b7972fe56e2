"""What only the data axes show: shapes that divide by no number of ranks, bf16 on the wire, routers that stay fp32.

That layouts change nothing is the whole-step equivalence suite's subject; here are the cases it does not have.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Shard

from glmforge.backend.global_batch import GlobalBatch
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.model.moe import Experts
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.build import build_model
from glmforge.parallel.fsdp import _expert_placement
from glmforge.parallel.reducer import Reducer
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.equivalence import batches, whole_state
from helpers.models import run_config, tiny_config

ODD = {"n_routed_experts": 5, "vocab_size": 509, "num_hidden_layers": 3}
"""Five experts and an odd vocabulary: dim 0 divides by no number of ranks, some shards are smaller or empty."""
WIDTH_49 = {"n_routed_experts": 6, "hidden_size": 49, "num_hidden_layers": 2}
"""Over ep = 2 and efsdp = 2 neither the three experts of a rank divide nor the rows of down_proj."""
PHASE = {"name": "main", "steps": 1, "seq_len": 16, "batch_size": 8, "aux_loss_weight": 1e-2}


def make_config(model: dict[str, Any], compute: str, parallel: dict[str, Any]) -> RunConfig:
    sizes = tiny_config(**model).model_dump()
    return run_config(model=sizes, phases=[PHASE], precision={"compute": compute}, parallel=parallel)


def backward(config: RunConfig, world: World) -> dict[str, Tensor]:
    """Losses, counts, whole weights and whole gradients of the first global batch."""
    model = build_model(config, world)
    objective = NextTokenObjective(config.phases[0], config.model.num_nextn_predict_layers)
    share = PHASE["batch_size"] // world.layout.data_ranks
    mine = batches(config)[0].rows(world.data_rank * share, (world.data_rank + 1) * share)
    batch = GlobalBatch(model, objective, [mine])
    model.run(batch.run, 1, batch.shape, num_mtp=objective.num_mtp, backward=True)
    model.finish_gradients()
    losses, _ = batch.sum(Reducer(world))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    results = {f"gradient.{name}": tensor for name, tensor in whole_state(gradients).items()}
    results |= {f"weight.{name}": tensor for name, tensor in whole_state(model.state_dict()).items()}
    return results | {"losses": losses, "counts": batch.count_tokens()[0]}


def rank_backward(config: RunConfig) -> dict[str, Tensor]:
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        results = backward(config, world)
        return results if world.is_main else {}


@pytest.mark.parametrize(
    ("parallel", "num_ranks", "model", "compute"),
    [
        ({}, 4, ODD, "fp32"),
        ({"dp_replicate": 2}, 4, ODD, "fp32"),
        ({"ep": 2}, 4, WIDTH_49, "fp32"),
        ({}, 2, ODD, "bf16"),
    ],
    ids=["short and empty shards", "hsdp", "uneven whole experts", "bf16"],
)
def test_one_backward_pass_equals_a_single_process(
    parallel: dict[str, Any], num_ranks: int, model: dict[str, Any], compute: str
) -> None:
    single = make_config(model, compute, {})
    expected = backward(single, World(0, 1, torch.device("cpu"), resolve_layout(single, 1)))
    actual, *_ = run_ranks(rank_backward, num_ranks, make_config(model, compute, parallel))
    assert actual.keys() == expected.keys()
    # fp32: sums over ranks in another order. bf16: per-rank partial gradients are rounded to bf16 (2^-9 relative each)
    # before their fp32 sum.
    tolerance = 1e-5 if compute == "fp32" else 1e-2
    for name, value in expected.items():
        if name.startswith("weight.") or name == "counts":
            assert torch.equal(actual[name], value), name
        else:
            error = (actual[name] - value).norm() / value.norm().clamp_min(1e-12)
            assert error < tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize(
    ("num_experts", "ep", "efsdp", "hidden_size", "dim"),
    [
        (8, 2, 2, 48, 0),
        (8, 2, 4, 48, 0),
        (8, 4, 4, 48, 1),
        (8, 8, 4, 48, 1),
        (8, 4, 4, 50, 0),  # neither two experts nor 50 rows over four ranks: FSDP's uneven shards
    ],
)
def test_experts_are_cut_whole_or_by_rows(num_experts: int, ep: int, efsdp: int, hidden_size: int, dim: int) -> None:
    with torch.device("meta"):
        experts = Experts(tiny_config(n_routed_experts=num_experts, hidden_size=hidden_size))
    sizes: Any = SimpleNamespace(axis_size={"ep": ep, "efsdp": efsdp}.__getitem__)
    assert _expert_placement(experts, sizes)(experts.down_proj) == Shard(dim)


def test_router_keeps_fp32_weights_under_bf16() -> None:
    assert run_ranks(rank_router_dtype, 2) == [{torch.float32}] * 2


def rank_router_dtype() -> set[torch.dtype]:
    config = make_config({}, "bf16", {})
    with join_world(resolve_layout(config, 2), timeout_s=60) as world:
        (part,) = build_model(config, world).parts
        seen: set[torch.dtype] = set()
        for moe in part.moe_layers.values():
            moe.gate.register_forward_pre_hook(lambda module, _: seen.add(module.weight.dtype))
        part(torch.zeros(2, 8, dtype=torch.int64))
        return seen
