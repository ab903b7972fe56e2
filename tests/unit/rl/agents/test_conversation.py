"""Turns bridged by tokens: against rendering where that loses nothing, and against another implementation."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from glmforge.data.chat.conversation import Conversation
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.generate.answer import Details, Sample
from glmforge.generate.logprobs import TokenLogprob
from glmforge.rl.agents.conversation import Transcript, bridged, next_turn, opening
from helpers.tiny_data import TinyData

TAGS = ("<|user|>", "<|observation|>", "<|endoftext|>")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


def text(draw: random.Random) -> str:
    words = ["def", "self", " ", "\n", "<think>", "</think>", "<|user|>", "é", "42", "return", "/nothink", "日"]
    return "x" + "".join(draw.choice(words) for _ in range(draw.randrange(8))) + "."


def turns(draw: random.Random) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Replies with what follows each: a user's message, results of the calls that it made, or both."""
    for _ in range(draw.randrange(1, 6)):
        reply: dict[str, Any] = {"role": "assistant", "content": text(draw), "reasoning_content": text(draw)}
        following = [{"role": "user", "content": text(draw)}]
        if draw.random() < 0.5:
            arguments = {"a": text(draw), "b": [1, {"c": None}]}
            reply["tool_calls"] = [{"function": {"name": "f", "arguments": arguments}}] * draw.randrange(1, 3)
            results = [{"role": "tool", "content": text(draw)} for _ in reply["tool_calls"]]
            following = results + (following if draw.random() < 0.3 else [])
        yield reply, following


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("thinking", [True, False])
def test_bridged_turns_are_the_rendered_conversation_where_no_reasoning_is_dropped(
    tokenizer: Tokenizer, seed: int, thinking: bool
) -> None:
    draw = random.Random(seed)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text(draw)},
        {"role": "user", "content": text(draw)},
    ]
    ids = opening(tokenizer, messages, TOOLS, thinking=thinking)
    for reply, following in turns(draw):
        reply = reply if thinking else reply | {"reasoning_content": ""}
        before, messages = list(ids), [*messages, reply]
        rendered = tokenizer.apply_chat_template(
            Conversation.from_messages(messages).messages, TOOLS, thinking=thinking, clear_thinking=False
        )
        assert rendered[: len(before)] == before
        tag = "<|observation|>" if following[0]["role"] == "tool" else "<|user|>"
        ids = [*rendered, tokenizer.special_id(tag)]  # as a model would have written its reply
        ids += bridged(ids, next_turn(tokenizer, following, thinking=thinking))
        messages += following
        assert ids == tokenizer.apply_chat_template(
            Conversation.from_messages(messages, is_prompt=True).messages,
            TOOLS,
            add_generation_prompt=True,
            thinking=thinking,
            clear_thinking=False,
        )
        assert ids.count(tokenizer.special_id("<|endoftext|>")) == 0


@pytest.mark.parametrize("seed", range(40))
def test_another_implementation_bridges_alike(tiny_data: TinyData, tokenizer: Tokenizer, seed: int) -> None:
    """Replies of any tokens, ended by any tag. It ends a cut reply with end-of-text, which we do not."""
    glm45 = pytest.importorskip("renderers.glm45", reason="renderers is not installed (pip install renderers)")
    configs = pytest.importorskip("renderers.configs")
    draw = random.Random(seed)
    theirs = glm45.GLM45Renderer(
        PreTrainedTokenizerFast(tokenizer_file=str(tiny_data.tokenizer / "tokenizer.json")),
        configs.GLM45RendererConfig(enable_thinking=False),
    )
    ids = opening(tokenizer, [{"role": "user", "content": "What is it?"}], TOOLS, thinking=False)
    for _ in range(4):
        end = tokenizer.special_id(draw.choice(TAGS))
        reply = [*(draw.randrange(256) for _ in range(draw.randrange(6))), *([end] if draw.random() < 0.8 else [])]
        plain = "".join(draw.choice("abc .\n") for _ in range(5)) + "."  # theirs reads control tokens in contents
        following = [{"role": draw.choice(("user", "tool")), "content": plain}]
        found = theirs.bridge_to_next_turn(ids, reply, following).token_ids
        if not reply or reply[-1] not in tokenizer.stop_ids:
            found.pop(len(ids) + len(reply))
        ids += reply
        ids += bridged(ids, next_turn(tokenizer, following, thinking=False))
        assert ids == found


def test_a_reply_stays_as_it_was_whatever_it_ended_with(tokenizer: Tokenizer) -> None:
    user = tokenizer.special_id("<|user|>")
    turn = next_turn(tokenizer, [{"role": "tool", "content": "<|user|>"}], thinking=True)
    assert turn.count(user) == 0, "what a tool returns has no control tokens"
    assert bridged([5, turn[0]], turn) == turn[1:]
    assert bridged([5, user], turn) == turn
    assert bridged([5], turn) == turn


def test_messages_that_cannot_follow_a_reply_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="none of the assistant's"):
        next_turn(tokenizer, [{"role": "assistant", "content": "me again"}], thinking=True)
    content = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(DataError, match="later messages change what is written of earlier ones"):
        next_turn(Tokenizer(tokenizer.to_json(), content), [{"role": "user", "content": "x"}], thinking=True)


def sample(tokens: list[int], num_known: int, finished: str = "stop") -> Sample:
    experts = torch.full((num_known + len(tokens) - 1, 1, 1), num_known, dtype=torch.int16)
    logprobs = [TokenLogprob(-float(token), ()) for token in tokens]
    return Sample(tokens, finished, logprobs=logprobs, details=Details([], experts))  # type: ignore[arg-type]


def test_a_transcript_knows_who_wrote_each_token_and_what_it_was_routed_to() -> None:
    transcript = Transcript([1, 2])
    transcript.reply(sample([3, 4], 2))
    transcript.observe([5, 6])
    transcript.reply(sample([7], 6))
    found = transcript.answer(9, 1, version=3)
    assert (found.key, found.finished) == ((9, 1), "stop")
    assert found.prompt_P.tolist() == [1, 2]
    assert found.tokens_N.tolist() == [3, 4, 5, 6, 7]
    assert found.own_N.tolist() == [True, True, False, False, True]
    assert found.logprobs_N.tolist() == [-3, -4, 0, 0, -7]
    assert found.experts is not None
    # Tokens 0 to 2 were routed when the first reply was sampled; the last of it and what followed, with the second.
    assert found.experts[:, 0, 0].tolist() == [2, 2, 2, 6, 6, 6]
    assert Transcript([1]).answer(0, 0, 0).trained_N is None
    cut = Transcript([1])
    cut.reply(sample([2], 1, finished="length"))
    assert cut.answer(0, 0, 0).is_cut
    assert np.array_equal(cut.answer(0, 0, 0).own_N, [True])
