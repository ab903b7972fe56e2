"""Bodies that nobody would send in good faith: a refusal in one line, or an `Ask`; never anything else."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from glmforge.protocol import chat, completions, messages, openai, responses, tokens
from glmforge.protocol.body import read_body
from glmforge.protocol.request import ApiError
from helpers.replies import Served

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
BODIES: list[tuple[Callable[[Any, Any], Any], dict[str, Any]]] = [
    (chat.parse, {
        "model": "glm", "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["x"], "seed": 1, "max_tokens": 9,
        "stream": True,
        "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}]},
            {"role": "tool", "content": "t", "tool_call_id": "1"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "logprobs": True, "top_logprobs": 2,
        "logit_bias": {"5": 1}, "stream_options": {"include_usage": True}, "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": True}, "thinking": {"type": "enabled"}, "reasoning_effort": "low"}),
    (chat.parse, {"messages": [{"role": "user", "content": "u"}], "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
    (completions.parse, {
        "prompt": ["a", [1, 2]], "max_tokens": 3, "echo": True, "logprobs": 1, "stop": "x", "top_k": 3}),
    (tokens.parse, {"prompt_token_ids": [1, 2], "n": 2, "logprobs": 1, "prompt_logprobs": True, "min_tokens": 1}),
    (tokens.tokenize, {"messages": [{"role": "user", "content": "u"}], "tools": [
        {"type": "function", "function": FUNCTION}]}),
    (tokens.detokenize, {"tokens": [1, 2]}),
    (messages.parse, {
        "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled", "budget_tokens": 5}, "stop_sequences": ["x"],
        "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}]}]}),
    (messages.count_tokens, {"messages": [{"role": "user", "content": "u"}], "output_config": {"effort": "low"}}),
    (responses.parse, {
        "instructions": "i", "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto", "max_output_tokens": 9,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}], "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "o"}]}),
]  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def values() -> tuple[Any, ...]:
    """Made anew, since bodies are changed where they are."""
    return (
        *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**39, 10**400, -(10**400), 0.5, -0.0, 1e308),
        *(
            float("nan"),
            float("inf"),
            "",
            " ",
            "x",
            "\ud800",
            "\x00",
            "a\nb",
            "<|user|>",
            "</think>",
            "{",
            "x" * 10_000,
        ),
        *([], {}, [[]], [{}], {"": ""}, [None], ["\ud800"], {"type": "text"}, {"type": 5}, {"\udfff": 1}, nested(70)),
        *(nested(900), {"$ref": "#"}, (1,), {"a": nested(50)}, "null", "auto"),
        [{"type": "function", "function": {"name": f"f{n}"}} for n in range(2_000)],
    )


def mutated(draw: random.Random, body: Any) -> Any:
    """The same with one to three values or keys replaced, removed or doubled somewhere."""
    root = {"body": copy.deepcopy(body)}
    for _ in range(draw.randint(1, 3)):
        holder: Any = root
        key: Any = "body"
        while isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.8:
            holder = holder[key]
            key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
        change = draw.random()
        if change < 0.75:
            holder[key] = draw.choice(values())
        elif isinstance(holder, list):
            holder.insert(key, holder[draw.randrange(len(holder))])
        elif holder is not root:
            holder[draw.choice(["type", "role", "content", "name", "schema", "x"])] = holder.pop(key)
    return root["body"]


def check(function: Callable[[Any, Any], Any], body: Any, served: Served) -> bool:
    """Whether it is refused; as it should be."""
    refusal = None
    try:
        function(read_body(json.dumps(body).encode()), served)
    except ApiError as error:
        refusal = error
    if refusal is None:
        return False
    words = str(refusal)
    assert refusal.status in (400, 404)
    assert words.isprintable()
    assert 0 < len(words) < 1000
    assert openai.error(refusal)["error"]["message"] == messages.error(refusal)["error"]["message"] == words
    return True


@pytest.mark.parametrize("place", range(len(BODIES)))
def test_mutated_bodies(served: Served, place: int) -> None:
    function, body = BODIES[place]
    draw = random.Random(place)
    assert not check(function, body, served), "the body is a good one"
    num_refused = sum(check(function, mutated(draw, body), served) for _ in range(400))
    assert 100 < num_refused < 400


@pytest.mark.parametrize("function", dict.fromkeys(one for one, _ in BODIES))
def test_bodies_that_are_none(served: Served, function: Callable[[Any, Any], Any]) -> None:
    for value in values():
        assert check(function, value, served)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff{}", b"[1]", b"1", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": %d}' % 10**41,
        b'{"a": "\\ud800"}', b'{"a": %s}' % (b"[" * 5_000 + b"]" * 5_000), b'{"a": [%s0]}' % (b"0," * 1_000_001),
    ],
)  # fmt: skip
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(body)
    assert str(caught.value).isprintable()


def test_what_is_json() -> None:
    given = {"a": [None, True, 1, -1.5, "é\x00", {"b": {}}], "deep": nested(60)}
    assert read_body(json.dumps(given).encode()) == given


def test_thousands_of_tools_and_long_schemas(served: Served) -> None:
    function, body = BODIES[0]
    tools = [{"type": "function", "function": FUNCTION | {"name": f"f{n}"}} for n in range(1025)]
    assert check(function, body | {"tools": tools}, served)
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}
    tool = {"type": "function", "function": FUNCTION | {"parameters": wide}}
    assert check(function, body | {"tools": [tool]}, served), "longer than the context"
