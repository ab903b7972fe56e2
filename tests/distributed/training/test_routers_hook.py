"""The biases' metrics are those of one process, whichever rank a layer lies on."""

from typing import Any

import pytest
import torch

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.observe.metrics import Record
from glmforge.parallel.world import World
from glmforge.training.hooks.routers import RouterBiases
from helpers.distributed import run_ranks
from helpers.hooks import fake_config


def moved(config: RunConfig, world: World, num_routers: int) -> list[Record]:
    """Two records: of biases that have moved, and of biases that have not moved since."""
    backend = NativeBackend.build(config, world)
    for number, bias_E in backend.router_biases().items():
        bias_E.copy_((number + 1) * torch.arange(len(bias_E)))
    biases = RouterBiases(backend)
    for number, bias_E in backend.router_biases().items():
        bias_E[0] -= 10 * number + 1
    return [biases.metrics(num_routers), biases.metrics(num_routers)]


def rank_moved(config: RunConfig, layout: Layout, num_routers: int) -> list[Record]:
    return moved(config, World.join(layout, torch.device("cpu")), num_routers)


@pytest.mark.parametrize("without_mtp", [False, True])
def test_spread_and_drift_by_hand(without_mtp: bool) -> None:
    config = fake_config()
    num_experts = config.model.n_routed_experts
    num_routers = config.model.num_moe_layers + (0 if without_mtp else config.model.num_nextn_predict_layers)
    first, second = moved(config, World.single("cpu"), num_routers)
    spread_L = [(number + 1) * (num_experts - 1) + 10 * number + 1 for number in range(num_routers)]
    assert first["layer_bias_spread"] == second["layer_bias_spread"] == spread_L
    assert first["layer_bias_drift"] == [10 * number + 1 for number in range(num_routers)]
    assert second["layer_bias_drift"] == [0] * num_routers
    assert first["bias_drift_max"] == 10 * (num_routers - 1) + 1


@pytest.mark.parametrize(
    "parallel",
    [{"pp": 2, "tp": 2, "micro_batch_size": 4}, {"pp": 2, "dp_shard": 2, "ep": 2, "micro_batch_size": 2}],
    ids=["pp + tp", "pp + fsdp + ep"],
)
def test_all_ranks_know_all_layers(parallel: dict[str, Any]) -> None:
    config = fake_config()
    num_routers = config.model.num_moe_layers + config.model.num_nextn_predict_layers
    expected = moved(config, World.single("cpu"), num_routers)
    sharded = fake_config(parallel=parallel)
    found = run_ranks(rank_moved, 4, sharded, resolve_layout(sharded, 4), num_routers)
    assert found == [expected] * 4
