"""What a server asks of the engine beside tokens: which stop ended an answer, what was cached, priorities, scoring."""

import asyncio

import pytest

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.asynchronous import Answer, AsyncEngine, UnreadError
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.text import TextStream
from glmforge.model import GlmMoe
from helpers.tiny_data import TinyData

PROMPT = list(range(100, 133))


def test_which_stop_ended_an_answer(model: GlmMoe, tiny_data: TinyData) -> None:
    engine = Engine(model, tokenizer=Tokenizer.load(tiny_data.tokenizer))
    ((free,),) = engine.generate([PROMPT], SamplingParams(max_new_tokens=12))
    assert (free.finished, free.stop) == ("length", None)
    token = free.tokens[5]
    ((by_token,),) = engine.generate([PROMPT], SamplingParams(max_new_tokens=12, stop_ids=(token,)))
    assert (by_token.finished, by_token.stop) == ("stop", token)
    strings = (free.text[6:9], "never")
    ((by_string,),) = engine.generate([PROMPT], SamplingParams(max_new_tokens=12, stop=strings))
    assert (by_string.finished, by_string.stop) == ("stop", strings[0])


def test_the_first_of_several_stop_strings_counts(tiny_data: TinyData) -> None:
    tokenizer = Tokenizer.load(tiny_data.tokenizer)
    stream = TextStream(tokenizer, ("b", "abx", "a"))
    text = ""
    for token in tokenizer.encode("xxab"):
        text += "" if stream.stopped else stream.add(token)
    assert text == "xx"
    assert stream.stopped_by == "a"


def test_what_was_found_in_the_cache(model: GlmMoe) -> None:
    """Of the prompt alone, once, whatever was computed again later; of each sample the same."""
    engine = Engine(model, EngineConfig(page_size=4))
    params = SamplingParams(max_new_tokens=6, num_samples=2, temperature=1.0)
    first, again = (engine.generate([PROMPT], params)[0] for _ in range(2))
    assert [sample.num_cached for sample in first] == [0, 0]
    assert [sample.num_cached for sample in again] == [32, 32]


def test_lower_priorities_go_first(model: GlmMoe) -> None:
    engine = Engine(model, EngineConfig(max_sequences=1))
    params = SamplingParams(max_new_tokens=2)
    numbers = {
        engine.queue(engine.prepare([number], params), priority=priority): priority
        for number, priority in enumerate((0, 3, -1, 3, 1), 1)
    }
    ended = []
    while not engine.is_idle:
        ended += [numbers[update.request] for update in engine.step() if update.finished]
    assert ended == [-1, 0, 1, 3, 3]


def test_a_prompt_is_scored_alone(model: GlmMoe) -> None:
    """Beside others, up to the last position of the model; nothing is generated."""
    limit = model.config.max_position_embeddings
    long = [number % 470 for number in range(limit)]
    scoring = SamplingParams(max_new_tokens=0, prompt_logprobs=True, logprobs=1)
    engine = Engine(model, EngineConfig(page_size=4, max_step_tokens=24))
    (scored,), (other,), (scored_long,) = engine.generate(
        [PROMPT, PROMPT, long], [scoring, SamplingParams(max_new_tokens=3), scoring]
    )
    ((one_token,),) = engine.generate([PROMPT], SamplingParams(max_new_tokens=1, prompt_logprobs=True, logprobs=1))
    assert (scored.tokens, scored.finished, scored.text) == ([], "length", "")
    assert len(other.tokens) == 3
    assert scored.details is not None
    assert one_token.details is not None
    assert scored.details.prompt_logprobs == one_token.details.prompt_logprobs
    assert scored_long.details is not None
    assert len(scored_long.details.prompt_logprobs) == limit - 1
    engine.check()


def test_nobody_waits_for_the_first_token_of_a_scored_prompt(model: GlmMoe) -> None:
    """Or the engine would keep a note of each."""
    engine = Engine(model)
    engine.add(PROMPT, SamplingParams(max_new_tokens=0, prompt_logprobs=True))
    assert [update.finished for update in engine.step()] == ["length"]
    assert engine.is_idle
    assert not engine.metrics._begun


def test_what_is_not_read_does_not_pile_up(model: GlmMoe) -> None:
    async def slow() -> Engine:
        engine = AsyncEngine(Engine(model))
        async with Answer(engine, max_unread=10) as answer:
            await answer.ask([1], SamplingParams(max_new_tokens=200))
            assert engine._steps is not None
            await engine._steps
            with pytest.raises(UnreadError, match="10 updates"):
                await answer.read()
        return engine.engine

    engine = asyncio.run(slow())
    assert engine.is_idle
    assert engine.metrics.num_new < 20
    engine.check()


def test_requests_that_are_read_together(model: GlmMoe) -> None:
    async def both() -> list[Update]:
        async with Answer(AsyncEngine(Engine(model))) as answer:
            await answer.ask([1], SamplingParams(max_new_tokens=3, num_samples=2))
            await answer.ask([2], SamplingParams(max_new_tokens=2), first_sample=2)
            updates = []
            while (update := await answer.read()) is not None:
                updates.append(update)
            return updates

    updates = asyncio.run(both())
    assert sorted(update.sample for update in updates) == [0, 0, 0, 1, 1, 1, 2, 2]
    alone = Engine(model).generate([[1], [2]], [SamplingParams(max_new_tokens=3), SamplingParams(max_new_tokens=2)])
    for sample, expected in ((0, alone[0][0]), (2, alone[1][0])):
        assert [update.token for update in updates if update.sample == sample] == expected.tokens
