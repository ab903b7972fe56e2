"""The policy's and the critic's objectives are exact on every layout: terms, metrics, gradients.

Answers are packed several to a row, and cp cuts them anywhere: at level "sequence" a ratio needs all of an answer.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.backend.objective import Objective
from glmforge.config.layout import resolve_layout
from glmforge.config.model import ModelConfig
from glmforge.config.rl import RlConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.policy import ADVANTAGE, OLD_LOGPROB, REFERENCE_LOGPROB, ROLLOUT_LOGPROB, PolicyObjective
from glmforge.objectives.value import OLD_VALUE, RETURN, ValueObjective
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.reducer import Reducer
from glmforge.parallel.world import World, join_world
from helpers.distributed import RankFailure, run_ranks
from helpers.equivalence import batches, differences, whole_state
from helpers.models import run_config, tiny_config

OBJECTIVES: dict[str, Objective] = {
    "tokens": PolicyObjective(RlConfig.model_validate({"kl": {"weight": 0.1}, "entropy": 0.05})),
    "sequences": PolicyObjective(
        RlConfig.model_validate(
            {
                "rollout": {"temperature": 0.7},
                "surrogate": {"level": "sequence", "low": 0.05, "high": 0.05, "reduction": "samples"},
            }
        )
    ),
    "value": ValueObjective(),
}

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp ep": (2, {"dp_shard": 2, "ep": 2, "micro_batch_size": 2}),
    "tp sp": (2, {"tp": 2}),
    "cp": (2, {"cp": 2, "micro_batch_size": 4}),
    "pp": (2, {"pp": 2, "micro_batch_size": 2}),
    "tp cp": (4, {"tp": 2, "cp": 2, "sequence_parallel": False}),
}

# As in the equivalence suite: sums over ranks and tokens in another order, some 1e-6 in a gradient.
TOLERANCE = 1e-5


def config_of(parallel: dict[str, Any]) -> RunConfig:
    phase = {"name": "main", "steps": 3, "seq_len": 32, "batch_size": 8}
    model = tiny_config(initializer_range=0.15, heads={"value": 1}).model_dump()
    config = run_config(phases=[phase], parallel=parallel)
    return config.model_copy(update={"model": ModelConfig(**model)})


def batch_of(config: RunConfig) -> Batch:
    batch, generator = batches(config)[0], torch.Generator().manual_seed(3)
    shape = batch.ids_BS.shape

    def about(mean: float, spread: float) -> Tensor:
        return mean + spread * torch.randn(shape, generator=generator)

    # About what an untrained model gives, so that ratios lie on both sides of the bounds.
    per_token = {
        ADVANTAGE: about(0, 1),
        OLD_LOGPROB: about(-6.2, 0.5),
        ROLLOUT_LOGPROB: about(-6.2, 0.1),
        REFERENCE_LOGPROB: about(-6.2, 0.1),
        OLD_VALUE: about(0, 0.3),
        RETURN: about(0, 1),
    }
    return replace(batch, per_token=per_token)


def run(config: RunConfig, world: World) -> dict[str, Tensor]:
    backend = NativeBackend.build(config, world)
    batch = batch_of(config)
    size = len(batch.ids_BS) // world.layout.data_ranks
    mine = batch.rows(world.data_rank * size, (world.data_rank + 1) * size)
    micro_batches = mine.micro_batches(world.layout.micro_batch_size or size)
    results = {}
    for name, objective in OBJECTIVES.items():
        backend.zero_grad()
        losses, metrics = backend.accumulate(objective, micro_batches).sum(Reducer(world))
        gradients = {n: p.grad for n, p in backend.model.named_parameters() if p.grad is not None}
        results |= {f"{name}.gradient.{n}": grad for n, grad in whole_state(gradients).items()}
        results |= {f"{name}.metric.{n}": values.float() for n, values in metrics.items() if n != "gap_bins"}
        results[f"{name}.losses"] = losses
    return results


def run_rank(parallel: dict[str, Any]) -> dict[str, Tensor]:
    config = config_of(parallel)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        results = run(config, world)
        return results if world.is_main else {}


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    config = config_of({})
    return run(config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)))


def test_everything_that_is_compared_is_there(expected: dict[str, Tensor]) -> None:
    assert expected["value.gradient.value.weight"].any()
    assert not expected["value.gradient.value.weight"].equal(expected["value.gradient.value.weight"] * 2)
    assert expected["tokens.gradient.lm_head.weight"].any()
    assert expected["tokens.losses"].numel() == 3
    for name in ("tokens", "sequences"):
        assert 0 < expected[f"{name}.metric.clipped"] < expected[f"{name}.metric.policy_tokens"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_objectives_equal_one_process(layout: str, expected: dict[str, Tensor]) -> None:
    num_ranks, parallel = LAYOUTS[layout]
    actual, *_ = run_ranks(run_rank, num_ranks, parallel)
    errors = differences(actual, expected)
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] < TOLERANCE, f"{worst}: {errors[worst]:.2e}"


def run_rank_with_sums_of_own_tokens() -> dict[str, Tensor]:
    """Planted: an answer's mean is that of the tokens on each rank."""
    whole = TokenShare.document_sums

    def own_only(self: TokenShare, x_o: Tensor, documents: Any) -> Tensor:
        return whole(self, x_o, documents) / self.world.axis_size("cp")

    TokenShare.document_sums = own_only  # type: ignore[method-assign]
    return run_rank(LAYOUTS["cp"][1])


def test_a_planted_bug_is_seen(expected: dict[str, Tensor]) -> None:
    try:
        actual, *_ = run_ranks(run_rank_with_sums_of_own_tokens, 2)
    except RankFailure as failure:
        if "ranks that hold copies of a part differ" not in str(failure):
            raise
        return
    assert differences(actual, expected)["sequences.losses"] > 1e-3
