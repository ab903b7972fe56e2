"""One rank has all requests, the others compute what it tells them: the same answers as of one process.

In fp32: ranks add in another order. Log-probabilities of these weights are up to 10, of which fp32 keeps 1e-6.
"""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.generate import lead
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.lead import LeadingModel, RankLostError, leading
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.sharded import ShardedModel
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.models import run_config

PROMPTS = [[5, 6, 7], [1], list(range(100, 150)), [5, 6, 7, 8], list(range(100, 148))]
PARAMS = [
    SamplingParams(max_new_tokens=10),
    SamplingParams(max_new_tokens=6, temperature=1.0, seed=3, num_samples=2),
    SamplingParams(max_new_tokens=8),
    SamplingParams(max_new_tokens=12),
    SamplingParams(max_new_tokens=3, temperature=0.7, seed=9),
]
WITH_LOGPROBS = [replace(one, logprobs=0, experts=True) for one in PARAMS]
NUM_PAGES, PAGE_SIZE = 26, 4
"""Two of the longer sequences: some have to give way to others."""
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {"ep": 2}),
    (2, {"tp": 2}),
    (2, {"pp": 2, "micro_batch_size": 2}),
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}),
]


def config_of(parallel: dict[str, Any]) -> RunConfig:
    # Weights large enough that attention, experts and routers all matter.
    sizes = run_config().model.model_dump() | {"initializer_range": 0.15}
    return run_config(model=sizes, parallel=parallel, precision={"compute": "fp32"})


def engine_of(runner: LeadingModel | WholeModel) -> Engine:
    cache_bytes = NUM_PAGES * runner.page_bytes(PAGE_SIZE)
    return Engine(runner, EngineConfig(cache_bytes, PAGE_SIZE, max_sequences=4, max_step_tokens=24))


def answers(engine: Engine) -> list[Any]:
    found = engine.generate(PROMPTS, WITH_LOGPROBS)
    engine.check()
    return [
        (sample.tokens, [one.logprob for one in sample.logprobs], sample.details.experts_TMK.tolist())
        for some in found
        for sample in some
    ]


def led(config: RunConfig) -> list[Any] | None:
    """Rank 0's answers."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        with runner.session(), leading(runner, 60) as leader:
            return None if leader is None else answers(engine_of(leader))


@pytest.mark.parametrize(("num_ranks", "parallel"), LAYOUTS, ids=str)
def test_answers_are_those_of_one_process(num_ranks: int, parallel: dict[str, Any]) -> None:
    config = config_of(parallel)
    (model,) = build_model(config.model_copy(update={"parallel": run_config().parallel}), World.single("cpu")).parts
    expected = answers(engine_of(WholeModel(model.eval())))
    found, *others = run_ranks(led, num_ranks, config)
    assert others == [None] * (num_ranks - 1)
    assert found is not None
    for (tokens, logprobs, experts), (ours, its_logprobs, its_experts) in zip(expected, found, strict=True):
        assert ours == tokens
        assert its_logprobs == pytest.approx(logprobs, abs=1e-5)
        assert its_experts == experts


def refused(config: RunConfig) -> str:
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        with runner.session(), pytest.raises(ConfigError) as raised, leading(runner, 60):
            pass
        return str(raised.value)


def test_ranks_that_would_have_nothing_to_do() -> None:
    assert {text.partition(",")[0] for text in run_ranks(refused, 2, config_of({"dp_shard": 2}))} == {
        "parallel: 2 data ranks"
    }


def idle(config: RunConfig) -> bool:
    """Longer than a collective call may take."""
    lead.BEAT_S = 0.2
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        with runner.session(), leading(runner, 2) as leader:
            if leader is not None:
                engine = engine_of(leader)
                time.sleep(5)
                return engine.generate([[1]], WITH_LOGPROBS[0])[0][0].finished == "length"
        return True


def test_idle_ranks_do_not_time_out() -> None:
    assert run_ranks(idle, 2, config_of({"ep": 2})) == [True, True]


def failing(config: RunConfig) -> str:
    """A step that fails on rank 0 leaves nobody waiting."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        try:
            with runner.session(), leading(runner, 60) as leader:
                if leader is not None:
                    engine, told = engine_of(leader), []
                    leader.on_lost = told.append
                    leader.sharded.run = None  # type: ignore[method-assign, assignment]
                    for _ in range(2):
                        engine.add([1], PARAMS[0])
                        with pytest.raises(RankLostError, match="NoneType"):
                            engine.step()
                    assert told == [leader.lost]
        except RankLostError as error:
            dist.destroy_process_group()
            return str(error)
        except RuntimeError:  # of the connection that is gone
            return "left"
        return "ended as if nothing had been"


def test_a_step_that_fails_ends_all() -> None:
    first, second = run_ranks(failing, 2, config_of({"ep": 2}))
    assert "NoneType" in first
    assert second == "left"
