"""What else a request may ask for is the same on every layout: log-probabilities, and the experts of every token."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine, Sample
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.sharded import ShardedModel
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.equivalence import Case

PROMPTS = [list(range(30)), [7, 8, 9]]


def engine_of(runner: ShardedModel | WholeModel) -> Engine:
    return Engine(runner, EngineConfig(64 * runner.page_bytes(16), max_step_tokens=16))


def rank_answers(config: RunConfig, params: SamplingParams) -> list[Sample]:
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        with runner.session():
            return [samples[0] for samples in engine_of(runner).generate(PROMPTS, params)]


@pytest.mark.parametrize(
    ("num_ranks", "parallel"),
    [
        (4, {"dp_shard": 2, "tp": 2, "ep": 2}),
        (4, {"pp": 2, "tp": 2, "sequence_parallel": False, "micro_batch_size": 2}),
        (2, {"pp": 2, "pipeline_schedule": "interleaved_1f1b", "micro_batch_size": 2}),
        (2, {"ep": 2}),
    ],
    ids=str,
)
def test_answers_tell_the_same(num_ranks: int, parallel: dict[str, Any]) -> None:
    params = SamplingParams(max_new_tokens=4, logprobs=2, prompt_logprobs=True, experts=True)
    case = Case(parallel, num_ranks)
    (model,) = build_model(case.config(single=True), World.single("cpu")).parts
    expected = [samples[0] for samples in engine_of(WholeModel(model.eval())).generate(PROMPTS, params)]
    for found in run_ranks(rank_answers, num_ranks, case.config(single=False), params):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.tokens == theirs.tokens
            assert ours.details is not None
            assert theirs.details is not None
            for one, other in zip(
                [*ours.logprobs, *ours.details.prompt_logprobs],
                [*theirs.logprobs, *theirs.details.prompt_logprobs],
                strict=True,
            ):
                # fp32 in other orders of summation.
                assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
                assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert torch.equal(ours.details.experts_TMK, theirs.details.experts_TMK)
