"""What fails for one request ends it alone; what fails for all raises, and the next step goes on where it was."""

from dataclasses import replace

import pytest
import torch

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Sample
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.generate.text import TextStream
from glmforge.model import GlmMoe
from helpers.tiny_data import TinyData

PROMPTS = [[5, 6, 7], [1], list(range(100, 160))]
PARAMS = SamplingParams(max_new_tokens=12, temperature=1.0, seed=3, top_p=0.9, num_samples=3, logprobs=1)


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


def small_engine(model: GlmMoe, tokenizer: Tokenizer | None = None) -> Engine:
    runner = WholeModel(model, with_mtp=True)
    config = EngineConfig(40 * runner.page_bytes(4), 4, max_sequences=5, max_step_tokens=32, drafter="mtp")
    return Engine(runner, config, tokenizer=tokenizer)


def tokens_of(samples: list[list[Sample]]) -> list[list[int]]:
    return [one.tokens for some in samples for one in some]


@pytest.mark.parametrize(("place", "number"), [("run", 16), ("draft", 1), ("copy_page", 2)])
def test_a_caller_who_catches_an_error_loses_no_token(
    model: GlmMoe, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    prompts = [*PROMPTS, [3, 4]]
    params = [PARAMS] * 3 + [replace(PARAMS, grammar='start: ("ab" | "cd"){5}', top_p=1.0)]
    expected = [one for some in small_engine(model, tokenizer).generate(prompts, params) for one in some]
    engine = small_engine(model, tokenizer)
    whole, calls = getattr(engine.runner, place), 0

    def fails_once(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            raise torch.OutOfMemoryError("no memory")
        return whole(*arguments)

    monkeypatch.setattr(engine.runner, place, fails_once)
    for prompt, one in zip(prompts, params, strict=True):
        engine.add(prompt, one)
    found = {(request, sample): Sample() for request in range(4) for sample in range(3)}
    caught = 0
    for _ in range(300):
        try:
            updates = engine.step()
        except torch.OutOfMemoryError:
            caught += 1
            continue
        for update in updates:
            found[update.request, update.sample].add(update)
    assert engine.is_idle
    assert caught == 1
    assert [(one.tokens, one.text, one.finished) for one in found.values()] == [
        (one.tokens, one.text, one.finished) for one in expected
    ]


@pytest.mark.parametrize(("name", "value"), [("top_k", 2**63), ("logit_bias", {700: 1.0}), ("temperature", "hot")])
def test_settings_that_fail_in_a_step_end_their_request_alone(model: GlmMoe, name: str, value: object) -> None:
    """Such as a list that somebody has changed since: what is made with them is refused."""
    expected = tokens_of(small_engine(model).generate(PROMPTS, PARAMS))
    engine = small_engine(model)
    params = SamplingParams(max_new_tokens=12, temperature=1.0, top_k=3, min_p=0.1, num_samples=9)
    numbers = [engine.add(prompt, PARAMS) for prompt in PROMPTS]
    number = engine.add([9, 9], params)
    object.__setattr__(params, name, value)
    found = {(request, sample): Sample() for request in numbers for sample in range(3)}
    found |= {(number, sample): Sample() for sample in range(9)}
    while not engine.is_idle:
        for update in engine.step():
            found[update.request, update.sample].add(update)
        engine.check()
    failed = [found.pop((number, sample)) for sample in range(9)]
    assert [sample.tokens for sample in found.values()] == expected
    assert {sample.finished for sample in failed} == {"error"}
    assert all("its settings cannot be applied: " in (sample.error or "") for sample in failed)


def test_a_text_that_cannot_be_decoded_ends_its_request_alone(
    model: GlmMoe, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens_of(small_engine(model, tokenizer).generate(PROMPTS, PARAMS))
    add = TextStream.add

    def of_one(stream: TextStream, token: int, *, may_stop: bool = True) -> str:
        if stream._stop == ("no such text",):
            raise KeyError(token)
        return add(stream, token, may_stop=may_stop)

    monkeypatch.setattr(TextStream, "add", of_one)
    settings = [PARAMS, SamplingParams(stop=("no such text",), num_samples=2), PARAMS, PARAMS]
    first, failed, *others = small_engine(model, tokenizer).generate([PROMPTS[0], [2], *PROMPTS[1:]], settings)
    assert tokens_of([first, *others]) == expected
    assert {sample.finished for sample in failed} == {"error"}
    assert all("of the answer: KeyError" in (sample.error or "") for sample in failed)


def test_samples_cost_what_runs(model: GlmMoe) -> None:
    """A sequence for each that runs, and one that waits; the tokens are those of an engine with room for all."""
    number = 200
    params = SamplingParams(max_new_tokens=3, temperature=1.0, seed=3, num_samples=number)
    (expected,) = Engine(model, EngineConfig(max_sequences=number)).generate([PROMPTS[0]], params)
    engine = small_engine(model)
    engine.add(PROMPTS[0], params)
    assert len(engine.scheduler.sequences) == 1
    found = {sample: Sample() for sample in range(number)}
    while not engine.is_idle:
        for update in engine.step():
            found[update.sample].add(update)
        assert len(engine.scheduler.running) <= 5
        assert len(engine.scheduler.waiting) <= 5
        engine.check()
    assert [sample.tokens for sample in found.values()] == [sample.tokens for sample in expected]
    assert not engine.samples
