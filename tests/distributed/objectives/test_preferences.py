"""Reward model and DPO are the same on every layout: losses, gradients, metrics, and what is said of every pair.

Two sources of pairs are packed in rows of their own and cut by cp anywhere; DPO has MTP layers, whose labels are those
of every second row.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.preferences import DpoConfig, RewardConfig
from glmforge.config.schema import RunConfig
from glmforge.evaluate.preferences import answer_values
from glmforge.objectives.dpo import DpoObjective
from glmforge.objectives.pairs import AnswerObjective
from glmforge.objectives.reward import RewardObjective
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.reducer import Reducer
from glmforge.parallel.world import World, join_world
from helpers.distributed import RankFailure, run_ranks
from helpers.equivalence import differences, whole_state
from helpers.preferences import preference_config, random_stream

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp ep": (2, {"dp_shard": 2, "ep": 2, "micro_batch_size": 2}),
    "tp sp": (2, {"tp": 2}),
    "cp": (2, {"cp": 2, "micro_batch_size": 4}),
    "pp": (2, {"pp": 2, "micro_batch_size": 2}),
    "tp cp": (4, {"tp": 2, "cp": 2, "sequence_parallel": False}),
    "dp pp": (4, {"dp_shard": 2, "pp": 2, "micro_batch_size": 2}),
}

# As in the equivalence suite: sums over ranks and tokens in another order, some 1e-6 in a gradient.
TOLERANCE = 1e-5


def objective_of(config: RunConfig) -> AnswerObjective:
    sources = ["first", "second"]
    if config.stage == "reward":
        return RewardObjective(config.phases[0], sources, RewardConfig(center_weight=0.1))
    return DpoObjective(config.phases[0], 1, sources, DpoConfig(label_smoothing=0.1))


def run(config: RunConfig, world: World) -> dict[str, Tensor]:
    """Losses, metrics and whole gradients of a batch, and what is said of all pairs."""
    backend, objective = NativeBackend.build(config, world), objective_of(config)
    stream = random_stream(with_reference=config.stage == "dpo")
    batch = stream.batch(0, 8, world.data_rank, world.layout.data_ranks)
    micro_batches = batch.micro_batches(world.layout.micro_batch_size or len(batch.ids_BS))
    losses, metrics = backend.accumulate(objective, micro_batches).sum(Reducer(world))
    gradients = {name: p.grad for name, p in backend.model.named_parameters() if p.grad is not None}
    results = {f"gradient.{name}": gradient for name, gradient in whole_state(gradients).items()}
    results |= {f"metric.{name}": values for name, values in metrics.items()} | {"losses": losses}
    with backend.evaluating() as model:
        size = 8 * world.layout.data_ranks  # the last batch goes beyond the end
        results["answers"] = answer_values(model, stream, objective, size)
    return results


def first_step(parallel: dict[str, Any]) -> tuple[float, Tensor]:
    """DPO's loss while the policy still is the reference, and the implicit rewards' sums."""
    config = preference_config("dpo", parallel=parallel)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        backend, objective, stream = NativeBackend.build(config, world), objective_of(config), random_stream()
        micro = world.layout.micro_batch_size
        with backend.evaluating() as model:
            values_P2 = answer_values(model, stream, objective, 8, micro)
        stream.reference_P2 = values_P2.float().numpy()
        batch = stream.batch(0, 8, world.data_rank, world.layout.data_ranks)
        micro_batches = batch.micro_batches(micro or len(batch.ids_BS))
        losses, metrics = backend.accumulate(objective, micro_batches).sum(Reducer(world))
        return losses[0].item(), metrics["pair_scores"]


def run_rank(stage: str, parallel: dict[str, Any]) -> dict[str, Tensor]:
    config = preference_config(stage, parallel=parallel, aux_loss_weight=1e-2)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        results = run(config, world)
        return results if world.is_main else {}


def alone(stage: str) -> dict[str, Tensor]:
    config = preference_config(stage, aux_loss_weight=1e-2)
    return run(config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)))


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Tensor]]:
    return {stage: alone(stage) for stage in ("reward", "dpo")}


def test_everything_that_is_compared_is_there(expected: dict[str, dict[str, Tensor]]) -> None:
    reward, dpo = expected["reward"], expected["dpo"]
    assert reward["gradient.score.weight"].any()
    assert dpo["gradient.lm_head.weight"].any()
    assert any("layers.4" in name and gradient.any() for name, gradient in dpo.items())  # the MTP layer
    assert (len(reward["losses"]), len(dpo["losses"])) == (3, 3)
    for results in (reward, dpo):
        assert results["metric.pair_pairs"].min() > 0
        assert results["answers"].all()


@pytest.mark.parametrize("stage", ["reward", "dpo"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_equal_one_process(layout: str, stage: str, expected: dict[str, dict[str, Tensor]]) -> None:
    num_ranks, parallel = LAYOUTS[layout]
    actual, *_ = run_ranks(run_rank, num_ranks, stage, parallel)
    errors = differences(actual, expected[stage])
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] < TOLERANCE, f"{worst}: {errors[worst]:.2e}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_step_pays_log_two_to_the_last_bit(layout: str) -> None:
    num_ranks, parallel = LAYOUTS[layout]
    for loss, scores in run_ranks(first_step, num_ranks, parallel):
        assert loss == pytest.approx(math.log(2), rel=1e-7)  # the mean over pairs is rounded
        assert scores.tolist() == [0.0, 0.0]


def count_on_every_rank() -> None:
    """Let every rank that shares rows count what all of them have alike."""
    TokenShare.once = lambda self, x: x  # type: ignore[method-assign]


def sum_own_tokens_only() -> None:
    """Take a document's sum to be what this rank has of it."""

    def sums(self: TokenShare, x_o: Tensor, documents: Any) -> Tensor:
        return x_o.new_zeros(len(documents.lengths)).index_add(0, self.own(documents.ids_T()), x_o)

    TokenShare.document_sums = sums  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "count on every rank": count_on_every_rank,
    "sum own tokens only": sum_own_tokens_only,
}


def run_rank_with_plant(name: str, stage: str) -> dict[str, Tensor]:
    PLANTS[name]()
    return run_rank(stage, LAYOUTS["cp"][1])


@pytest.mark.full
@pytest.mark.parametrize("stage", ["reward", "dpo"])
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, stage: str, expected: dict[str, dict[str, Tensor]]) -> None:
    try:
        actual, *_ = run_ranks(run_rank_with_plant, 2, name, stage)
    except RankFailure as failure:
        if "ranks that hold copies of a part differ" not in str(failure):
            raise
        return
    assert max(differences(actual, expected[stage]).values()) > 1e-2
