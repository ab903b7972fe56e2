"""Random conversations, from a line of JSON to ids with weights and back."""

import json
import random
from typing import Any

import pytest

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.encode import encode
from glmforge.data.chat.read import RawRecord
from glmforge.data.chat.records import conversation_of
from glmforge.data.tokens.tokenizer import Tokenizer
from helpers.random_conversations import arguments_of, read_back, record, spelt, split_answer
from helpers.tiny_data import TinyData


@pytest.mark.parametrize("num_conversations", [150, pytest.param(100_000, marks=pytest.mark.full)])
def test_nothing_is_lost_and_nothing_else_is_learnt(tiny_data: TinyData, num_conversations: int) -> None:
    """Each text is what the format's description says, each token is learnt where it says so, and what is read back
    from the ids is what the record said."""
    tokenizer, draw = Tokenizer.load(tiny_data.tokenizer), random.Random(num_conversations)
    for number in range(num_conversations):
        made = record(draw)
        line = json.dumps(made, ensure_ascii=draw.random() < 0.5).encode()
        (document,) = encode(conversation_of(RawRecord(f"a:{number}", line).parse()), tokenizer, ChatConfig())
        pieces = spelt(made)
        expected = "".join(text for text, _ in pieces)
        assert tokenizer.decode(document.ids.tolist()) == expected, line
        learnt = [tokenizer.encode_with_special_tokens(text) for text in _joined(pieces)]
        assert document.weights.tolist() == [float(i % 2) for i, ids in enumerate(learnt) for _ in ids], line
        assert [_comparable(message) for message in made["messages"]] == _without_tools(read_back(expected), made), line


def _joined(pieces: list[tuple[str, bool]]) -> list[str]:
    """Texts in turn not learnt, learnt, not learnt, ..."""
    texts = [""]
    for text, learnt in pieces:
        if learnt != (len(texts) % 2 == 0):
            texts.append("")
        texts[-1] += text
    return texts


def _comparable(message: dict[str, Any]) -> dict[str, Any]:
    """A message as `read_back` has it."""
    if message["role"] != "assistant":
        return {"role": message["role"], "content": message["content"]}
    reasoning, answer = split_answer(message)
    calls = [(call["function"]["name"], _written(arguments_of(call))) for call in message.get("tool_calls", ())]
    return {"role": "assistant", "reasoning": reasoning, "content": answer, "calls": calls}


def _written(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    return [(k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in arguments.items()]


def _without_tools(messages: list[dict[str, Any]], made: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the system message that lists the tools."""
    return messages[1:] if "tools" in made else messages
