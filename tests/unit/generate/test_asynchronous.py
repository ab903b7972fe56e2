"""Tasks of one event loop read the tokens that their requests get alone."""

import asyncio
from contextlib import aclosing

import pytest

from glmforge.generate.asynchronous import AsyncEngine
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.model import GlmMoe

PROMPTS = [[5, 6, 7], [1], list(range(100, 130)), [5, 6, 7, 8]]
PARAMS = SamplingParams(max_new_tokens=6, temperature=1.0, seed=3, num_samples=2)


async def read(engine: AsyncEngine, prompt: list[int]) -> list[list[int]]:
    samples: list[list[int]] = [[], []]
    async for update in engine.stream(prompt, PARAMS):
        samples[update.sample].append(update.token)
    return samples


def test_each_task_reads_its_own(model: GlmMoe) -> None:
    async def all_at_once() -> list[list[list[int]]]:
        engine = AsyncEngine(Engine(model, EngineConfig(page_size=4, max_sequences=3, max_step_tokens=8)))
        first = await asyncio.gather(*(read(engine, prompt) for prompt in PROMPTS))
        assert await read(engine, PROMPTS[0]) == first[0], "it goes on when there were no requests for a while"
        assert engine.engine.is_idle
        return first

    alone = Engine(model).generate(PROMPTS, PARAMS)
    assert asyncio.run(all_at_once()) == [[sample.tokens for sample in samples] for samples in alone]


def test_who_stops_reading_cancels(model: GlmMoe) -> None:
    async def two() -> Engine:
        engine = AsyncEngine(Engine(model))
        async with aclosing(engine.stream([1], SamplingParams(max_new_tokens=200))) as left:
            async for _ in left:
                break
        assert len(await read(engine, PROMPTS[0])) == 2
        with pytest.raises(RequestError, match="is empty"):
            await read(engine, [])
        return engine.engine

    engine = asyncio.run(two())
    assert engine.is_idle
    assert engine.metrics.num_new < 40


def test_everybody_is_told_of_a_defect(model: GlmMoe, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model)

    def broken(tokens: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine.runner, "run", broken)

    async def two() -> list[object]:
        streams = AsyncEngine(engine)
        return await asyncio.gather(*(read(streams, prompt) for prompt in PROMPTS[:2]), return_exceptions=True)

    assert [str(error) for error in asyncio.run(two())] == ["the device is gone"] * 2
