"""Every layout gives the tokens that one process gives, keeps no more weights than it is told, and leaves no trace.

In fp32: ranks add in another order, which would change a choice between two tokens whose logits agree to six digits. No
such pair comes up here.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.sharded import ShardedModel
from glmforge.kernels.native.calls import is_available
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.equivalence import Case
from helpers.models import run_config

PROMPTS = [[5, 6, 7], [1], list(range(100, 150)), [5, 6, 7, 8], list(range(100, 148))]
PARAMS = [
    SamplingParams(max_new_tokens=10),
    SamplingParams(max_new_tokens=6, temperature=1.0, seed=3, num_samples=2),
    SamplingParams(max_new_tokens=8),
    SamplingParams(max_new_tokens=12),
    SamplingParams(max_new_tokens=3, temperature=0.7, seed=9),
]
NUM_PAGES, PAGE_SIZE = 26, 4
"""Two of the longer sequences: some have to give way to others."""

Answers = dict[int, list[list[int]]]


def config_of(parallel: dict[str, Any], compute: str = "fp32", **model: Any) -> RunConfig:
    # Weights large enough that attention, experts and routers all matter.
    sizes = run_config().model.model_dump() | {"initializer_range": 0.15} | model
    return run_config(model=sizes, parallel=parallel, precision={"compute": compute})


def engine_of(runner: ShardedModel | WholeModel, **options: Any) -> Engine:
    cache_bytes = NUM_PAGES * runner.page_bytes(PAGE_SIZE)
    return Engine(runner, EngineConfig(cache_bytes, PAGE_SIZE, max_sequences=4, max_step_tokens=24, **options))


def answers_of(engine: Engine, mine: range) -> Answers:
    answers = engine.generate([PROMPTS[i] for i in mine], [PARAMS[i] for i in mine])
    engine.check()
    return {i: [sample.tokens for sample in samples] for i, samples in zip(mine, answers, strict=True)}


def alone(config: RunConfig, options: dict[str, Any]) -> Answers:
    """The answers of one process."""
    single = config.model_copy(update={"parallel": run_config().parallel})
    (model,) = build_model(single, World.single("cpu")).parts
    return answers_of(engine_of(WholeModel(model.eval()), **options), range(len(PROMPTS)))


def rank_answers(
    config: RunConfig, max_weight_bytes: int | None, options: dict[str, Any]
) -> tuple[Answers, tuple[int, int]]:
    """This rank's answers, and what its weights take."""
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world), max_weight_bytes)
        with runner.session():
            answers = answers_of(engine_of(runner, **options), range(runner.share, len(PROMPTS), runner.num_shares))
        return answers, tuple(runner.weight_bytes)


ALONE: list[tuple[int, dict[str, Any]]] = [
    (2, {"dp_shard": 2}),
    (2, {"dp_replicate": 2}),
    (2, {"tp": 2}),
    (2, {"ep": 2}),
    (2, {"cp": 2}),
    (2, {"pp": 2, "micro_batch_size": 2}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "zbv"}),
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}),
    (4, {"pp": 2, "dp_shard": 2, "ep": 2, "micro_batch_size": 2}),
]

MATRIX: list[tuple[int, dict[str, Any]]] = [
    (2, {"tp": 2, "sequence_parallel": False}),
    (4, {"dp_shard": 4}),
    (4, {"pp": 2, "tp": 2, "micro_batch_size": 2}),
    (4, {"dp_replicate": 2, "dp_shard": 2}),
    (4, {"tp": 2, "dp_replicate": 2}),
    (4, {"ep": 4}),
    (4, {"ep": 4, "tp": 2, "sequence_parallel": False}),
    (4, {"cp": 2, "tp": 2, "ep": 4}),
    (4, {"cp": 2, "dp_shard": 2, "ep": 2, "recompute": "full"}),
    (4, {"pp": 2, "cp": 2, "micro_batch_size": 2}),
    (4, {"pp": 2, "dp_replicate": 2, "micro_batch_size": 2, "pipeline_schedule": "interleaved_1f1b"}),
    (4, {"pp": 2, "tp": 2, "micro_batch_size": 2, "pipeline_schedule": "dualpipev"}),
    (4, {"pp": 4, "micro_batch_size": 2}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_layers": [4, 0]}),
    (4, {"dp_shard": 4, "cpu_offload": True}),
    (2, {"tp": 2, "compile": True}),
    (2, {"dp_shard": 2, "reshard_after_forward": False, "prefetch_layers": 0}),
]


def named(cases: list[tuple[int, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(size, parallel, id=Case(parallel, size).name) for size, parallel in cases]


def check(
    num_ranks: int,
    parallel: dict[str, Any],
    max_weight_bytes: int | None = None,
    *,
    model: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
) -> list[Any]:
    """Compares the tokens; the weights' bytes of each rank."""
    config, options = config_of(parallel, **(model or {})), engine or {}
    results = run_ranks(rank_answers, num_ranks, config, max_weight_bytes, options)
    found: Answers = {}
    for answers, _ in results:
        for index, tokens in answers.items():
            assert found.setdefault(index, tokens) == tokens, "ranks with the same requests differ"
    assert found == alone(config, options)
    return [weight_bytes for _, weight_bytes in results]


@pytest.mark.parametrize(("num_ranks", "parallel"), named(ALONE))
def test_tokens_are_those_of_one_process(num_ranks: int, parallel: dict[str, Any]) -> None:
    for _, passing in check(num_ranks, parallel):
        assert passing == 0


@pytest.mark.full
@pytest.mark.parametrize("max_weight_bytes", [None, 0])
@pytest.mark.parametrize(("num_ranks", "parallel"), named(MATRIX))
def test_tokens_are_those_of_one_process_on_every_layout(
    num_ranks: int, parallel: dict[str, Any], max_weight_bytes: int | None
) -> None:
    check(num_ranks, parallel, max_weight_bytes)


@pytest.mark.parametrize("model", [{"tie_word_embeddings": True}, {"n_routed_experts": 5, "vocab_size": 509}], ids=str)
def test_tokens_of_other_models(model: dict[str, Any]) -> None:
    check(2, {"dp_shard": 2}, model=model)


@pytest.mark.parametrize(("num_ranks", "parallel"), named([(4, {"dp_shard": 2, "tp": 2, "ep": 2})]))
def test_tokens_of_confirmed_guesses(num_ranks: int, parallel: dict[str, Any]) -> None:
    check(num_ranks, parallel, engine={"drafter": "ngram"})


@pytest.mark.parametrize("parallel", [{"dp_shard": 2}, {"ep": 2}], ids=str)
def test_a_budget_for_weights(parallel: dict[str, Any]) -> None:
    """What may not be kept is gathered in every step."""
    ((everything, _), _) = check(2, parallel)
    ((kept, passing), _) = check(2, parallel, everything // 2)
    assert everything // 4 < kept <= everything // 2
    assert kept + passing == everything
    assert check(2, parallel, 0) == [(0, everything)] * 2


def logprobs_of(engine: Engine, mine: range) -> dict[int, list[list[tuple[int, float]]]]:
    params = [replace(PARAMS[i], logprobs=0) for i in mine]
    answers = engine.generate([PROMPTS[i] for i in mine], params)
    return {
        i: [
            [(token, one.logprob) for token, one in zip(sample.tokens, sample.logprobs, strict=True)] for sample in some
        ]
        for i, some in zip(mine, answers, strict=True)
    }


def rank_logprobs(config: RunConfig) -> tuple[Any, bool, int]:
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        runner = ShardedModel(build_model(config, world))
        with runner.session():
            found = logprobs_of(engine_of(runner), range(runner.share, len(PROMPTS), runner.num_shares))
            return found, runner._native is not None, runner.weight_bytes.kept


@pytest.mark.skipif(not is_available(), reason="no C++ compiler")
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize(("num_ranks", "parallel"), named([(1, {}), (2, {"dp_shard": 2})]))
def test_whole_weights_give_the_bits_of_one_process(num_ranks: int, parallel: dict[str, Any], compute: str) -> None:
    """By the same kernels, which read masters where they lie, and gathered weights beside routers in fp32."""
    config = config_of(parallel, compute)
    single = config.model_copy(update={"parallel": run_config().parallel})
    (model,) = build_model(single, World.single("cpu")).parts
    runner = WholeModel(model.eval())
    assert runner.is_native
    expected = logprobs_of(engine_of(runner), range(len(PROMPTS)))
    found: dict[int, Any] = {}
    for mine, is_native, kept in run_ranks(rank_logprobs, num_ranks, config):
        found |= mine
        assert is_native
        assert (kept == 0) == (num_ranks == 1)
    assert found == expected
