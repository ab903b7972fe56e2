"""8-bit products on parts of weights and tokens: gradients of a layout are those of one process but for rounding."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.equivalence import batches, whole_state
from helpers.models import run_config

# All widths, cut in two as well, are multiples of 16; weights so small that few choices of experts hang on rounding.
WIDTHS = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "initializer_range": 0.02}
LAYOUTS: dict[str, dict[str, Any]] = {"tp": {"tp": 2}, "ep": {"ep": 2}, "fsdp": {"dp_shard": 2}}


def config_of(low_precision: str, parallel: dict[str, Any]) -> RunConfig:
    return run_config(
        model=run_config().model.model_dump() | WIDTHS,
        phases=[{"name": "main", "steps": 3, "seq_len": 32, "batch_size": 8}],
        precision={"compute": "bf16", "low_precision": low_precision},
        parallel=parallel,
    )


def gradients(config: RunConfig, world: World) -> dict[str, Tensor]:
    phase = config.phases[0]
    backend = NativeBackend.build(config, world)
    share = phase.batch_size // world.layout.data_ranks
    mine = batches(config)[0].rows(world.data_rank * share, (world.data_rank + 1) * share)
    backend.accumulate(NextTokenObjective(phase, config.model.num_nextn_predict_layers), [mine])
    named = backend.model.named_parameters()
    return whole_state({name: p.grad for name, p in named if p.grad is not None})


def rank_gradients(low_precision: str, parallel: dict[str, Any]) -> dict[str, Tensor]:
    config = config_of(low_precision, parallel)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        return gradients(config, world)


def alone(low_precision: str) -> dict[str, Tensor]:
    config = config_of(low_precision, {})
    return gradients(config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)))


def error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Relative to the norm of all gradients together."""
    apart = torch.stack([(found[name] - expected[name]).norm() for name in expected]).norm()
    return float(apart / torch.stack([gradient.norm() for gradient in expected.values()]).norm())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_a_layout_are_those_of_one_process(layout: str) -> None:
    expected, exact = alone("fp8"), alone("none")
    rounding = error(expected, exact)
    assert rounding > 0.05
    # Whole rows are rounded alike wherever they are: what is left is bf16, 2^-8 of partial gradients. Under tp sums of
    # two bf16 numbers move what is rounded to e4m3 by a place here and there: less than the rounding itself, and a
    # gradient that lacks the other rank's part would be wrong by a third and more.
    limit = rounding if layout == "tp" else 0.01
    for found in run_ranks(rank_gradients, 2, "fp8", LAYOUTS[layout]):
        assert error(found, expected) < limit
