"""Thousands of requests that come, go, begin alike, run out of memory and meet other weights: none is lost, no page
leaks, and each one's tokens are those that it gets alone."""

import random
from collections import defaultdict
from typing import Literal

import pytest
import torch

from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.model import GlmMoe

PAGE_SIZE, NUM_PAGES = 4, 24


def random_request(generator: random.Random, beginnings: list[list[int]]) -> tuple[list[int], SamplingParams]:
    beginning = generator.choice(beginnings)[: generator.randint(0, 40)]
    prompt = beginning + [generator.randrange(512) for _ in range(generator.randint(1, 12))]
    params = SamplingParams(
        max_new_tokens=generator.randint(1, 16),
        temperature=generator.choice([0.0, 0.0, 1.0]),
        seed=generator.randrange(1000),
        num_samples=generator.choice([1, 1, 1, 3]),
        stop_ids=tuple(generator.sample(range(512), 8)),
    )
    return prompt, params


@pytest.mark.parametrize("number", [40, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("drafter", [None, "mtp"])
def test_nothing_is_lost_and_nothing_leaks(model: GlmMoe, drafter: Literal["mtp"] | None, number: int) -> None:
    torch.set_num_threads(1)
    generator = random.Random(number)
    beginnings = [[generator.randrange(512) for _ in range(40)] for _ in range(5)]
    runner = WholeModel(model, with_mtp=drafter is not None)
    cache_bytes = NUM_PAGES * runner.page_bytes(PAGE_SIZE)
    limits = EngineConfig(cache_bytes, PAGE_SIZE, max_sequences=8, max_step_tokens=24, drafter=drafter, num_drafts=3)
    engine = Engine(runner, limits)
    waiting = [random_request(generator, beginnings) for _ in range(number)]
    asked, cancelled = {}, set()
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    ended: dict[tuple[int, int], str] = {}
    while waiting or not engine.is_idle:
        for _ in range(min(len(waiting), generator.choice([0, 0, 1, 4]))):
            prompt, params = waiting.pop()
            asked[engine.add(prompt, params)] = prompt, params
        if asked and generator.random() < 0.02:
            request = generator.choice(list(asked))
            cancelled.add(request)
            engine.cancel(request)
        if generator.random() < 0.02:
            engine.weights_changed(recompute=generator.random() < 0.5)
        for update in engine.step():
            key = update.request, update.sample
            assert key not in ended
            found[key].append(update.token)
            if update.finished is not None:
                ended[key] = update.finished
        engine.check()
    assert engine.memory.pool.num_free + len(engine.memory.tree) == NUM_PAGES
    assert engine.scheduler.num_preempted > number / 100
    for request, (prompt, params) in asked.items():
        alone = Engine(runner, EngineConfig(cache_bytes, PAGE_SIZE, share_prefixes=False))
        (expected,) = alone.generate([prompt], params)
        for sample, answer in enumerate(expected):
            got = found[request, sample]
            if request in cancelled:
                assert got == answer.tokens[: len(got)]
            else:
                assert got == answer.tokens
                assert ended[request, sample] == answer.finished
