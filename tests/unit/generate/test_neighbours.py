"""Whatever a request asks for, its neighbours have the tokens that they have without it, one in every step."""

import random

import pytest

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate import grammar
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.grammar_process import Limits
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe
from helpers.random_grammars import random_request
from helpers.tiny_data import TinyData

NUM_REQUESTS, NUM_NEIGHBOURS, LENGTH = 150, 30, 90


def neighbour(number: int) -> SamplingParams:
    settings = [{}, {"top_k": 20}, {"top_p": 0.8}, {"repetition_penalty": 1.3}, {"min_p": 0.01, "logprobs": 2}]
    return SamplingParams(
        max_new_tokens=LENGTH - number, temperature=number % 3 / 2, seed=number, stop_ids=[511], **settings[number % 5]
    )


def test_neighbours_of_random_requests(model: GlmMoe, tiny_data: TinyData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "LIMITS", Limits(0.2, 0.2))
    generator = random.Random(1)
    runner = WholeModel(model)
    engine = Engine(
        runner,
        EngineConfig(cache_bytes=1200 * runner.page_bytes(4), page_size=4, drafter=None),
        tokenizer=Tokenizer.load(tiny_data.tokenizer),
    )
    prompts = [[number, 3, 5] for number in range(NUM_NEIGHBOURS)]
    params = [neighbour(number) for number in range(NUM_NEIGHBOURS)]
    expected = [samples[0].tokens for samples in engine.generate(prompts, params)]
    neighbours = {engine.add(*one): number for number, one in enumerate(zip(prompts, params, strict=True))}
    found: list[list[int]] = [[] for _ in expected]
    waiting, asked, ended, refused = NUM_REQUESTS, {}, {}, 0
    for step in range(1, 2000):
        for _ in range(min(waiting, 2)):
            waiting -= 1
            try:
                own = SamplingParams(**random_request(generator))
                asked[engine.add(generator.choice(["ab", [7, 8]]), own)] = own.num_samples
            except RequestError:
                refused += 1
        for update in engine.step():
            if update.request in neighbours:
                found[neighbours[update.request]].append(update.token)
            elif update.finished is not None:
                ended[update.request, update.sample] = update.finished
                assert (update.error is not None) == (update.finished == "error")
        engine.check()
        for tokens, whole in zip(found, expected, strict=True):
            assert tokens == whole[:step]  # one in every step
        if engine.is_idle and not waiting:
            break
    assert engine.is_idle
    assert ended.keys() == {(request, sample) for request, number in asked.items() for sample in range(number)}
    assert not engine.following
    reasons = list(ended.values())
    assert refused > 30
    assert min(reasons.count(reason) for reason in ("error", "stop", "length")) >= 5
