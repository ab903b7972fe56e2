"""A reward model and policy gradients, each one small file, are exact on every layout: loss, gradients, a step.

Documents are packed two to a row and cut by cp anywhere, pairs lie in neighbouring rows, and the score head is beside
the language-model head in the last pipeline stage.
"""

from collections.abc import Callable
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
from glmforge.config.parameters import parameter_table
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.optim.optimizer import build_optimizer
from glmforge.parallel import collectives
from glmforge.parallel.build import build_model
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.reducer import Reducer
from glmforge.parallel.world import World, join_world
from helpers.distributed import RankFailure, run_ranks
from helpers.equivalence import LR, batches, differences, whole_state
from helpers.models import run_config, tiny_config
from helpers.objectives.policy_gradient import PolicyGradientObjective
from helpers.objectives.reward import RewardObjective

OBJECTIVES: tuple[Objective, ...] = (PolicyGradientObjective(), RewardObjective())

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp ep": (2, {"dp_shard": 2, "ep": 2, "micro_batch_size": 2}),
    "tp sp": (2, {"tp": 2}),
    "cp": (2, {"cp": 2, "micro_batch_size": 4}),
    "pp": (2, {"pp": 2, "micro_batch_size": 2}),
    "tp cp": (4, {"tp": 2, "cp": 2, "sequence_parallel": False}),
}

# As in the equivalence suite: sums over ranks and tokens in another order, some 1e-6 in a gradient.
TOLERANCE = 1e-5


def config_of(parallel: dict[str, Any], *, lm_head: bool = True) -> RunConfig:
    phase = {"name": "main", "steps": 3, "seq_len": 32, "batch_size": 8}
    without = {} if lm_head else {"lm_head": False, "num_nextn_predict_layers": 0}
    model = tiny_config(initializer_range=0.15, heads={"score": 1}, **without).model_dump()
    config = run_config(phases=[phase], parallel=parallel)
    return config.model_copy(update={"model": ModelConfig(**model)})  # no stage trains a score head yet


def batch_of(config: RunConfig) -> Batch:
    """Packed documents with everything the two objectives read."""
    batch, generator = batches(config)[0], torch.Generator().manual_seed(3)
    shape = batch.ids_BS.shape
    is_scored = torch.zeros(shape)
    for row, lengths in enumerate(batch.document_lengths):
        is_scored[row, torch.tensor(lengths).cumsum(0) - 1] = 1.0
    per_token = {
        "is_scored": is_scored,
        "advantages": torch.randn(shape, generator=generator),
        # About what an untrained model gives, so that ratios lie on both sides of the clip.
        "old_logprobs": -6.2 + 0.5 * torch.randn(shape, generator=generator),
    }
    return replace(batch, per_token=per_token, per_row={"margin": torch.rand(shape[0], generator=generator)})


def run(config: RunConfig, world: World) -> dict[str, Tensor]:
    """Losses, metrics and whole gradients of each objective, and the score head after a step with the last of them."""
    model = build_model(config, world)
    optimizer = build_optimizer(
        model.named_parameters(), parameter_table(config.model), config.optim, world=world, compute_dtype=torch.float32
    )
    backend = NativeBackend(model, optimizer)
    batch = batch_of(config)
    size = len(batch.ids_BS) // world.layout.data_ranks
    mine = batch.rows(world.data_rank * size, (world.data_rank + 1) * size)
    micro_batches = mine.micro_batches(world.layout.micro_batch_size or size)
    results, reducer = {}, Reducer(world)
    for objective in OBJECTIVES if config.model.lm_head else (RewardObjective(),):
        name = objective.terms[0]
        backend.zero_grad()
        reducer.add("ranks", [1.0])  # as a hook would
        losses, metrics = backend.accumulate(objective, micro_batches).sum(reducer)
        assert metrics.pop("ranks").item() == world.size
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        results |= {f"{name}.gradient.{n}": grad for n, grad in whole_state(gradients).items()}
        results |= {f"{name}.metric.{n}": values.long() for n, values in metrics.items()}
        results[f"{name}.losses"] = losses
    backend.step(LR)
    state = {name: tensor for name, tensor in backend.state_tensors().items() if name.endswith("score.weight")}
    return results | whole_state(state)


def run_rank(parallel: dict[str, Any], lm_head: bool = True) -> dict[str, Tensor]:
    config = config_of(parallel, lm_head=lm_head)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        results = run(config, world)
        return results if world.is_main else {}


def expected_of(*, lm_head: bool) -> dict[str, Tensor]:
    config = config_of({}, lm_head=lm_head)
    return run(config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)))


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return expected_of(lm_head=True)


def test_everything_that_is_compared_is_there(expected: dict[str, Tensor]) -> None:
    assert expected["reward.gradient.score.weight"].any()
    assert expected["policy.gradient.lm_head.weight"].any()
    assert "reward.gradient.lm_head.weight" not in expected
    assert {"model.score.weight", "optim.exp_avg.score.weight"} <= expected.keys()
    assert 0 < expected["reward.metric.right"] < 8
    assert 0 < expected["policy.metric.clipped"] < 8 * 32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_objectives_equal_one_process(layout: str, expected: dict[str, Tensor]) -> None:
    num_ranks, parallel = LAYOUTS[layout]
    actual, *_ = run_ranks(run_rank, num_ranks, parallel)
    errors = differences(actual, expected)
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] < TOLERANCE, f"{worst}: {errors[worst]:.2e}"


@pytest.mark.parametrize("layout", [pytest.param("fsdp ep", marks=pytest.mark.full), "tp sp", "pp"])
def test_a_model_may_end_without_a_language_model_head(layout: str, expected: dict[str, Tensor]) -> None:
    alone = expected_of(lm_head=False)
    assert not any("lm_head" in name for name in alone)
    assert torch.equal(alone["reward.losses"], expected["reward.losses"])  # the rest of the model is the same
    num_ranks, parallel = LAYOUTS[layout]
    actual, *_ = run_ranks(run_rank, num_ranks, parallel, False)
    errors = differences(actual, alone)
    assert max(errors.values()) < TOLERANCE, errors


def keep_gradients_of_own_pairs() -> None:
    """Forget that a document's tokens on other ranks have a part in what this rank makes of its sum."""
    collectives.copy = lambda x, group: x


def count_on_every_rank() -> None:
    """Let every rank that shares rows count what all of them have alike."""
    TokenShare.once = lambda self, x: x  # type: ignore[method-assign]


PLANTS: dict[str, tuple[Callable[[], None], str]] = {
    "gradients of own pairs": (keep_gradients_of_own_pairs, "reward.gradient.score.weight"),
    "count on every rank": (count_on_every_rank, "reward.losses"),
}


def run_rank_with_plant(name: str) -> dict[str, Tensor]:
    PLANTS[name][0]()
    return run_rank(LAYOUTS["cp"][1])


@pytest.mark.full
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_seen(name: str, expected: dict[str, Tensor]) -> None:
    try:
        actual, *_ = run_ranks(run_rank_with_plant, 2, name)
    except RankFailure as failure:
        if "ranks that hold copies of a part differ" not in str(failure):
            raise
        return
    assert differences(actual, expected)[PLANTS[name][1]] > 1e-2
