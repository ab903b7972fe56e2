"""Tasks of one event loop read the tokens that their requests get alone."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.admission import QueueFullError
from glmforge.generate.answer import Update
from glmforge.generate.asynchronous import AsyncEngine
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.model import GlmMoe
from helpers.tiny_data import TinyData

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


def test_what_is_prepared_holds_up_nobody(model: GlmMoe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the event loop nor the requests that run; its own task waits, and nobody else's."""
    engine, goes_on = Engine(model), threading.Event()
    prepare = engine.prepare

    def slow(prompt: list[int], params: SamplingParams, **settings: object) -> object:
        if prompt == PROMPTS[1]:
            assert goes_on.wait(60)
        return prepare(prompt, params, **settings)

    monkeypatch.setattr(engine, "prepare", slow)

    async def three() -> list[list[list[int]]]:
        streams = AsyncEngine(engine)
        waiting = [asyncio.create_task(read(streams, PROMPTS[1])) for _ in range(40)]
        others = await asyncio.gather(*(read(streams, prompt) for prompt in PROMPTS[2:]))
        assert not any(task.done() for task in waiting)
        goes_on.set()
        return [await task for task in waiting] + others

    *waiting, third, fourth = asyncio.run(three())
    alone = [[sample.tokens for sample in samples] for samples in Engine(model).generate(PROMPTS, PARAMS)]
    assert waiting == [alone[1]] * 40
    assert [third, fourth] == alone[2:]


SMALL = EngineConfig(max_sequences=1, max_queued_requests=1)


def test_a_full_queue_refuses_a_server_and_holds_a_loop(model: GlmMoe) -> None:
    engine = Engine(model, SMALL)
    most = 0

    async def both() -> list[list[list[int]]]:
        streams = AsyncEngine(engine)

        async def read_later(prompt: list[int]) -> list[list[int]]:
            nonlocal most
            samples: list[list[int]] = [[], []]
            async for update in streams.stream(prompt, PARAMS, wait=True):
                most = max(most, len({one.request.number for one in engine.scheduler.sequences}))
                samples[update.sample].append(update.token)
            return samples

        async with aclosing(streams.stream([1], SamplingParams(max_new_tokens=200))) as runs:
            await anext(runs)
            second = asyncio.create_task(read(streams, PROMPTS[0]))
            while engine.metrics.num_requests < 2:
                await asyncio.sleep(0)
            with pytest.raises(QueueFullError, match=r"1 waiting \(max_queued_requests is 1\); try again later"):
                await read(streams, PROMPTS[0])
            waiting = [asyncio.create_task(read_later(prompt)) for prompt in 3 * PROMPTS]
        return [await second, *[await task for task in waiting]]

    second, *waiting = asyncio.run(both())
    alone = [[sample.tokens for sample in samples] for samples in Engine(model).generate(PROMPTS, PARAMS)]
    assert second == alone[0]
    assert waiting == 3 * alone
    assert most == 2
    assert engine.is_idle


def test_what_is_being_prepared_has_a_place_in_the_queue(model: GlmMoe, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, goes_on, prepared = Engine(model, SMALL), threading.Event(), []
    prepare = engine.prepare

    def slow(prompt: list[int], params: SamplingParams, **settings: object) -> object:
        prepared.append(prompt)
        assert goes_on.wait(60)
        return prepare(prompt, params, **settings)

    monkeypatch.setattr(engine, "prepare", slow)

    async def three() -> list[object]:
        streams = AsyncEngine(engine)
        tasks = [asyncio.create_task(read(streams, prompt)) for prompt in PROMPTS[:3]]
        with pytest.raises(QueueFullError):
            await tasks[2]
        goes_on.set()
        return await asyncio.gather(*tasks[:2])

    assert [len(samples) for samples in asyncio.run(three())] == [2, 2]
    assert PROMPTS[2] not in prepared


def test_a_request_that_fails_is_told_so_and_nobody_else(model: GlmMoe, tiny_data: TinyData) -> None:
    engine = Engine(model, tokenizer=Tokenizer.load(tiny_data.tokenizer))
    settings = SamplingParams(grammar='start: "ab" <|user|>')

    async def both() -> tuple[list[list[int]], list[Update]]:
        streams = AsyncEngine(engine)

        async def failing() -> list[Update]:
            return [update async for update in streams.stream("ab", settings)]

        return tuple(await asyncio.gather(read(streams, PROMPTS[0]), failing()))

    found, failed = asyncio.run(both())
    assert found == [
        sample.tokens for sample in Engine(model, tokenizer=engine.tokenizer).generate([PROMPTS[0]], PARAMS)[0]
    ]
    assert failed[-1].finished == "error"
    assert "only excluded tokens" in (failed[-1].error or "")


def test_everybody_is_told_of_a_defect(model: GlmMoe, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model)

    def broken(tokens: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine.runner, "run", broken)

    async def two() -> list[object]:
        streams = AsyncEngine(engine)
        return await asyncio.gather(*(read(streams, prompt) for prompt in PROMPTS[:2]), return_exceptions=True)

    assert [str(error) for error in asyncio.run(two())] == ["the device is gone"] * 2
