"""Needle tests: what is in them, where it is, and that they are the same every time."""

import re
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from glmforge.config.needles import NeedleTask, NeedleTestsConfig, NeedleValues
from glmforge.data.needles.build import NeedleTest, NeedleTests
from glmforge.data.needles.haystack import PlainHaystack, ShardHaystack
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

LENGTH = 1500
MakeShard = Callable[..., TokenShard]


def made(tokenizer: Tokenizer, **settings: Any) -> NeedleTests:
    given = {"lengths": [LENGTH], "depths": [0.0, 0.5, 1.0], "num_examples": 1} | settings
    return NeedleTests(NeedleTestsConfig(**given), tokenizer, PlainHaystack(tokenizer))


def text_of(test: NeedleTest, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(test.ids)


def retrieved(task: str, text: str) -> list[str]:
    """What a reader of the text answers, from the question alone."""
    body, question = text.split("\n\n")
    if task == "variables":
        wanted = {re.search(r"value (\d+),", question)[1]}  # type: ignore[index]
        found = []
        for name, assigned in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", body):
            if assigned in wanted:
                wanted.add(name)
                found.append(name)
        return found
    asked = re.search(r"secret \w+ for (.*?)(?:, in the order of the text)?\?", question)[1]  # type: ignore[index]
    keys = re.split(", | and ", asked)
    return [value for key in keys for value in re.findall(rf"secret \w+ for {key} is (\S+)\.", body)]


@pytest.mark.parametrize("values", get_args(NeedleValues))
@pytest.mark.parametrize("task", get_args(NeedleTask))
def test_a_reader_finds_the_answers(tokenizer: Tokenizer, task: str, values: str) -> None:
    tests = made(tokenizer, tasks=[task], values=values)
    for index in range(len(tests)):
        test = tests[index]
        text = text_of(test, tokenizer)
        prompt = tokenizer.decode(test.ids[: test.num_text])
        answers = [answer.text for answer in test.answers]
        assert retrieved(task, prompt) == answers
        assert len(answers) == (1 if task in ("single", "multi_key") else 4)
        assert text.endswith(f" {', '.join(answers)}.")
        for answer in test.answers:
            assert tokenizer.decode(test.ids[answer.start : answer.stop]) == f" {answer.text}"
        assert test.num_prompt == test.answers[0].start


@pytest.mark.parametrize("task", get_args(NeedleTask))
def test_needles_lie_at_their_depth_between_sentences(tokenizer: Tokenizer, task: str) -> None:
    tests = made(tokenizer, tasks=[task], lengths=[4000])
    for index, key in enumerate(tests.keys):
        test = tests[index]
        body = text_of(test, tokenizer).split("\n\n")[0]
        assert key.depth in {answer.depth for answer in test.answers}
        for answer in test.answers:
            needle = re.search(rf"VAR {answer.text} =|is {answer.text}\.", body)
            assert needle is not None
            # The needles themselves and the introduction take some of the text; a sentence is not cut.
            assert needle.start() / len(body) == pytest.approx(answer.depth, abs=0.12)
        assert all(sentence.strip()[0].isupper() for sentence in body.split(".") if sentence.strip())


def test_lengths_are_filled(tokenizer: Tokenizer) -> None:
    tests = made(tokenizer, lengths=[800, 300], num_examples=3)
    assert [key.length for key in tests.keys] == [300] * 9 + [800] * 9
    longest_sentence = 60
    for index in range(len(tests)):
        test = tests[index]
        assert test.key.length - longest_sentence < len(test.ids) <= test.key.length


def test_a_test_does_not_depend_on_the_others(tokenizer: Tokenizer) -> None:
    few = made(tokenizer, tasks=["multi_key"], depths=[0.5])
    many = made(tokenizer, tasks=["single", "multi_key"], depths=[0.0, 0.5], lengths=[900, LENGTH], num_examples=2)
    assert few[0] == many[many.keys.index(few.keys[0])]
    assert few[0] != made(tokenizer, tasks=["multi_key"], depths=[0.5], seed=1)[0]


def test_text_of_a_shard_has_no_special_tokens_and_begins_again(tokenizer: Tokenizer, make_shard: MakeShard) -> None:
    documents = [[*tokenizer.encode(f"Line {n} of a book. It is short."), tokenizer.end_of_text_id] for n in range(9)]
    shard = make_shard(documents, vocab_size=tokenizer.vocab_size)
    shard.info = None  # another program's: there is no fingerprint to compare
    tests = NeedleTests(NeedleTestsConfig(lengths=[700], depths=[0.3]), tokenizer, ShardHaystack(shard, tokenizer))
    text = tokenizer.decode(tests[0].ids)
    assert tokenizer.end_of_text_id not in tests[0].ids
    assert text.count("Line 3 of a book. It is short.\n") > 1
    assert re.search(r"(\.|\n) The secret number for", text)


def test_text_without_sentences_is_refused(tokenizer: Tokenizer, make_shard: MakeShard) -> None:
    shard = make_shard([tokenizer.encode("word ") * 100], vocab_size=tokenizer.vocab_size)
    shard.info = None
    with pytest.raises(DataError, match="no sentence ends in 4,096 tokens"):
        NeedleTests(NeedleTestsConfig(lengths=[500]), tokenizer, ShardHaystack(shard, tokenizer))


def test_a_question_without_room_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="lengths: 64 tokens are too few for the question of"):
        made(tokenizer, lengths=[64])


def test_a_decimal_point_ends_no_sentence(tokenizer: Tokenizer, make_shard: MakeShard) -> None:
    shard = make_shard([tokenizer.encode("Pi is 3.14 and e is 2.71 today. ") * 50], vocab_size=tokenizer.vocab_size)
    shard.info = None
    depths = np.linspace(0, 1, 11).tolist()
    tests = NeedleTests(NeedleTestsConfig(lengths=[600], depths=depths), tokenizer, ShardHaystack(shard, tokenizer))
    for index in range(len(tests)):
        assert not re.search(r"\d\. The", tokenizer.decode(tests[index].ids))
