"""Requests with several adapters in one batch: each has what its own adapter, merged into the weights, gives.

In fp32, where merging rounds W + s B A and serving rounds W x + s B (A x): 1e-4 of log-probabilities.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from glmforge.checkpoint.adapter.open import Adapter
from glmforge.errors import GlmforgeError
from glmforge.generate.adapters import AdaptedModels
from glmforge.generate.answer import Sample
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe
from helpers.made_adapters import made_adapter, merged_model
from helpers.models import randomize_, tiny_config

CONFIG = tiny_config()
ADAPTERS: dict[str, Adapter] = {
    "attention": made_adapter(CONFIG, 1, "q_proj", "o_proj"),
    "all": made_adapter(CONFIG, 2, "all-linear", rank=3, rslora=True),
    "packed experts and router": made_adapter(CONFIG, 3, "experts.gate_up_proj", "mlp.gate", rank=6),
    "some experts": made_adapter(CONFIG, 4, "experts.up_proj", "k_proj", alpha=2.0),
    "DoRA": made_adapter(CONFIG, 5, "v_proj", "shared_experts", dora=True),
    "ends": made_adapter(CONFIG, 6, "embed_tokens", "lm_head", "q_proj"),
    "whole norms": made_adapter(CONFIG, 7, "q_proj", modules_to_save=("norm", "input_layernorm")),
}
NAMES = [None, *ADAPTERS]
PROMPTS = [[5, 6, 7], list(range(100, 130)), [9] * 17]
PARAMS = SamplingParams(max_new_tokens=8, logprobs=0, prompt_logprobs=True, experts=True)
SMALL = EngineConfig(1 << 20, page_size=4, max_sequences=16, max_step_tokens=40)


@pytest.fixture(scope="module")
def model() -> GlmMoe:
    model = GlmMoe(CONFIG)
    randomize_(model)
    return model.eval()


@pytest.fixture(scope="module")
def expected(model: GlmMoe) -> dict[str | None, list[Any]]:
    merged = {name: merged_model(model, adapter) for name, adapter in ADAPTERS.items()}
    return {
        name: [facts(one) for (one,) in Engine(merged.get(name, model), SMALL).generate(PROMPTS, PARAMS)]
        for name in NAMES
    }


def facts(sample: Sample) -> tuple[list[int], list[int], list[float]]:
    """Greedy tokens, experts, log-probabilities of prompt and answer."""
    assert sample.details is not None
    assert sample.details.experts_TMK is not None
    logprobs = [one.logprob for one in (*sample.details.prompt_logprobs, *sample.logprobs)]
    return sample.tokens, sample.details.experts_TMK.sort().values.tolist(), logprobs


def answers(engine: Engine, asked: list[tuple[list[int], str | None]], params: SamplingParams = PARAMS) -> list[Sample]:
    """As a server adds them, and steps."""
    numbers = [engine.queue(engine.prepare(prompt, params, adapter=name)) for prompt, name in asked]
    found = {number: Sample() for number in numbers}
    while not engine.is_idle:
        for update in engine.step():
            found[update.request].add(update)
    engine.check()
    return [found[number] for number in numbers]


def check(found: Sample, wanted: Any) -> None:
    tokens, experts, logprobs = facts(found)
    assert (tokens, experts) == wanted[:2]
    assert logprobs == pytest.approx(wanted[2], abs=1e-4)


@pytest.mark.parametrize("cache_bytes", [1 << 20, 80_000], ids=["room", "little room"])
def test_one_batch_of_all_adapters(model: GlmMoe, expected: dict[str | None, list[Any]], cache_bytes: int) -> None:
    """Also where sequences give way to each other, and where prompts come in pieces."""
    engine = Engine(AdaptedModels(model, ADAPTERS), replace(SMALL, cache_bytes=cache_bytes))
    asked = [(prompt, name) for prompt in PROMPTS for name in NAMES]
    found = answers(engine, asked)
    assert (engine.scheduler.num_preempted > 0) == (cache_bytes < 1 << 20)
    for sample, (prompt, name) in zip(found, asked, strict=True):
        check(sample, expected[name][PROMPTS.index(prompt)])
    assert len({tuple(sample.tokens) for sample in found[: len(NAMES)]}) == len(NAMES), "every adapter matters"


@pytest.mark.parametrize("name", NAMES)
def test_each_alone(model: GlmMoe, expected: dict[str | None, list[Any]], name: str | None) -> None:
    engine = Engine(AdaptedModels(model, {name: ADAPTERS[name]} if name else ADAPTERS), SMALL)
    for prompt, wanted in zip(PROMPTS, expected[name], strict=True):
        check(answers(engine, [(prompt, name)])[0], wanted)


def test_prefixes_are_of_an_adapter(model: GlmMoe, expected: dict[str | None, list[Any]]) -> None:
    engine = Engine(AdaptedModels(model, ADAPTERS), SMALL)
    plain = SamplingParams(max_new_tokens=8)
    for turn in range(2):
        for name in NAMES:
            (found,) = answers(engine, [(PROMPTS[1], name)], plain)
            assert found.tokens == expected[name][1][0], name
            assert found.num_cached == (28 if turn else 0)


def test_requests_without_an_adapter_have_the_bits_of_the_base(model: GlmMoe) -> None:
    params = SamplingParams(max_new_tokens=8, logprobs=0)
    alone = answers(Engine(WholeModel(model), SMALL), [(PROMPTS[0], None)], params)
    mixed = answers(Engine(AdaptedModels(model, ADAPTERS), SMALL), [(PROMPTS[0], None), (PROMPTS[1], "all")], params)
    assert [one.logprob for one in mixed[0].logprobs] == [one.logprob for one in alone[0].logprobs]


def test_samples_and_drafts(model: GlmMoe) -> None:
    params = SamplingParams(max_new_tokens=12, num_samples=3, temperature=1.0, seed=4)
    asked = [(PROMPTS[2], "all"), (PROMPTS[2], None), (PROMPTS[2], "DoRA")]
    plain, drafting = (
        answers(Engine(AdaptedModels(model, ADAPTERS), replace(SMALL, drafter=drafter)), asked, params)
        for drafter in (None, "ngram")
    )
    assert [one.tokens for one in drafting] == [one.tokens for one in plain]


def test_base_weights_are_in_memory_once(model: GlmMoe) -> None:
    own = {weight.data_ptr() for weight in model.parameters()}
    runner = AdaptedModels(model, ADAPTERS)
    size = sum(weight.numel() for weight in model.parameters())
    added = {
        weight.data_ptr(): weight.numel()
        for one in set(runner._runners.values())
        for weight in one.model.parameters()
        if weight.data_ptr() not in own
    }
    assert sum(added.values()) < size / 2


def test_refusals(model: GlmMoe) -> None:
    runner = AdaptedModels(model, ADAPTERS)
    with pytest.raises(RequestError, match="'other' is not loaded"):
        Engine(runner, SMALL).prepare([1], adapter="other")
    with pytest.raises(RequestError, match="not loaded"):
        Engine(model, SMALL).prepare([1], adapter="all")
    with pytest.raises(GlmforgeError, match="'mtp' needs a runner"):
        Engine(runner, replace(SMALL, drafter="mtp"))


def test_bf16(model: GlmMoe) -> None:
    """Close to fp32's: of the first token's log-probabilities."""
    half = GlmMoe(CONFIG)
    half.load_state_dict(model.state_dict())
    half = half.to(torch.bfloat16).eval()
    half.compute_dtype = torch.bfloat16
    params = SamplingParams(max_new_tokens=1, logprobs=100)
    for name in ("all", "DoRA"):
        exact, rough = (
            answers(Engine(AdaptedModels(one, ADAPTERS), SMALL), [(PROMPTS[1], name)], params)[0]
            for one in (model, half)
        )
        top = dict(rough.logprobs[0].top)
        differences = [abs(value - top[token]) for token, value in exact.logprobs[0].top if token in top]
        assert len(differences) > 50
        assert sum(differences) / len(differences) < 0.5, name
