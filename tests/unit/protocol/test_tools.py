"""Calls that must be made, by a model that has learnt nothing: names, required parameters and types are right."""

import json
from dataclasses import replace
from typing import Any

import pytest

from glmforge.generate.engine import Engine
from glmforge.model import GlmMoe
from glmforge.protocol.chat import ChatWriter, parse
from helpers.models import randomize_, tiny_config
from helpers.replies import Served

pytest.importorskip("llguidance")

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "required": ["days", "unit"],
        "properties": {"days": {"type": "integer"}, "note": {"type": "string"}, "unit": {"enum": ["C", "F \"x\""]}}}}}
    for name in ("weather", "forecast")
]  # fmt: skip


@pytest.fixture(scope="module")
def engine(served: Served) -> Engine:
    config = tiny_config(vocab_size=served.tokenizer.vocab_size, max_position_embeddings=2048)
    model = GlmMoe(config)
    randomize_(model)
    return Engine(model.eval(), tokenizer=served.tokenizer)


def called(engine: Engine, served: Served, **body: Any) -> list[dict[str, Any]]:
    ask = parse({"messages": [{"role": "user", "content": "hi"}], "temperature": 1, "seed": 3} | body, served)
    writer = ChatWriter(ask, served, "x")
    ends = [served.tokenizer.special_id(tag) for tag in ("</arg_value>", "</tool_call>")]  # so that texts are short
    engine.add(ask.prompt, replace(ask.params, logit_bias=dict.fromkeys(ends, 20.0)))
    while not engine.is_idle:
        for update in engine.step():
            writer.update(update)
    (choice,) = writer.whole()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    return [call["function"] for call in choice["message"]["tool_calls"]]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "forecast"}}])
def test_forced_calls_are_whole(engine: Engine, served: Served, choice: Any) -> None:
    calls = called(engine, served, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_tokens=100)
    (call,) = calls
    assert call["name"] in (("weather", "forecast") if choice == "required" else ("forecast",))
    arguments = json.loads(call["arguments"])
    assert type(arguments["days"]) is int
    assert arguments["unit"] in ("C", 'F "x"')
    assert set(arguments) <= {"days", "note", "unit"}
