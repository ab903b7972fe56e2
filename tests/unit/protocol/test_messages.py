"""Anthropic's Messages: what a body asks for, and answers that Anthropic's own client understands."""

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from glmforge.protocol.messages import MessagesWriter, count_tokens, error, parse
from glmforge.protocol.request import ApiError, Ask
from helpers.replies import Served, answered, streamed, updates_of

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}]
REPLY = (
    "\n<think>which é</think>\nLet me see."
    "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n"
    "</tool_call>\n<tool_call>weather\n</tool_call>"
)
EVENTS = TypeAdapter(RawMessageStreamEvent)


def ask(served: Served, **body: Any) -> Ask:
    return parse({"model": "glm", "max_tokens": 100, "messages": HI} | body, served)


def built(events: list[Any]) -> Message:
    """What Anthropic's client makes of a stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for name, data in events:
        assert name == data["type"]
        event = EVENTS.validate_python(data)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert isinstance(snapshot, Message)
    return snapshot


def test_blocks_become_the_templates_messages(served: Served) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "why", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "see"},
            {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Bern"}},
            {"type": "tool_use", "id": "2", "name": "weather", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "warm"}]},
            {"type": "tool_result", "tool_use_id": "2"}]},
    ]  # fmt: skip
    found = ask(served, system=[{"type": "text", "text": "Be brief"}], tools=TOOLS, messages=messages)
    text = served.tokenizer.decode(found.prompt)
    assert text.endswith(
        "<|system|>\nBe brief<|user|>\na/nothink<|assistant|>\n<think>why</think>\nsee\n<tool_call>weather\n"
        "<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>\n<tool_call>weather\n</tool_call>"
        "<|observation|>\n<tool_response>\nwarm\n</tool_response>\n<tool_response>\n\n</tool_response><|assistant|>\n"
        "<think></think>"
    )
    assert '{"name": "weather", "description": "of a city", "parameters": {"type": "object"' in text


def test_settings(served: Served) -> None:
    found = ask(served, stop_sequences=["x"], temperature=0.5, top_k=3, top_p=0.9, metadata={"user_id": "me"}, n=5)
    params = found.params
    assert (params.stop, params.temperature, params.top_k, params.top_p) == (["x"], 0.5, 3, 0.9)
    assert (params.num_samples, params.max_new_tokens) == (1, 100)
    assert found.reasoning_budget is None
    assert ask(served, thinking={"type": "enabled", "budget_tokens": 30}).reasoning_budget == 30
    assert ask(served, thinking={"type": "adaptive"}).reasoning_budget is None
    effort = ask(served, thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert effort.reasoning_budget == 20
    schema = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert ask(served, output_config=schema).params.json_schema == SCHEMA
    assert served.tokenizer.decode(ask(served, tools=TOOLS, tool_choice={"type": "any"}).prompt).endswith("<tool_call>")
    named = ask(served, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"})
    assert served.tokenizer.decode(named.prompt).endswith("<tool_call>weather\n")
    alone = ask(served, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert alone.params.stop_ids


def test_prefill(served: Served) -> None:
    found = ask(served, messages=[*HI, {"role": "assistant", "content": "The answer is ("}])
    assert served.tokenizer.decode(found.prompt).endswith("<think></think>\nThe answer is (")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}]}]},
         "messages[0].content[0].content[0].type"),
        ({"system": 5}, "system"), ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"), ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}, "thinking": {"type": "adaptive"}}, "tool_choice"),
        ({"messages": [*HI, {"role": "assistant", "content": "x"}], "thinking": {"type": "adaptive"}}, "messages"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"), ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(served: Served, body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask(served, **body)
    assert (caught.value.status, caught.value.param) == (400, param)
    told = error(caught.value)
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["error"]["message"].startswith(param)


def test_a_message_and_its_stream(served: Served) -> None:
    options = {"tools": TOOLS, "thinking": {"type": "adaptive"}}
    updates = list(updates_of(served.tokenizer, REPLY, num_cached=4))
    whole = answered(MessagesWriter(ask(served, **options), served, "msg_1"), iter(updates))
    message = Message.model_validate(whole)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    thought, text, first, second = (block.model_dump() for block in message.content)
    assert (thought["thinking"], text["text"]) == ("which é", "Let me see.")
    assert (first["name"], first["input"], second["input"]) == ("weather", {"city": "Zürich"}, {})
    assert first["id"] != second["id"]
    assert len(thought["signature"]) == 64
    assert message.stop_reason == "tool_use"
    assert message.usage.cache_read_input_tokens == 4
    assert message.usage.output_tokens == len(updates)
    for eager in (False, True):
        tools = [TOOLS[0] | {"eager_input_streaming": eager}]
        wanted = ask(served, stream=True, **(options | {"tools": tools}))
        events = streamed(MessagesWriter(wanted, served, "msg_1"), iter(updates))
        assert built(events).model_dump(exclude={"usage"}) == message.model_dump(exclude={"usage"})
        assert built(events).usage.output_tokens == len(updates)
        inputs = [data for name, data in events if data.get("delta", {}).get("type") == "input_json_delta"]
        assert (len(inputs) > 5) == eager
        json.dumps([event.data for event in events], allow_nan=False)


def test_blocks_open_and_close_one_after_another(served: Served) -> None:
    """What is said behind a call is a block of its own, without the white space before it."""
    wanted = ask(served, tools=[TOOLS[0] | {"eager_input_streaming": True}], stream=True)
    writer = MessagesWriter(wanted, served, "x")
    events = streamed(writer, updates_of(served.tokenizer, REPLY + "\n So it is."))
    marks = [(data["index"], name) for name, data in events if name in ("content_block_start", "content_block_stop")]
    assert marks == [(number, f"content_block_{what}") for number in range(5) for what in ("start", "stop")]
    assert [block["text"] for block in writer.whole()["content"] if block["type"] == "text"] == [
        "Let me see.",
        "So it is.",
    ]
    texts = [data["delta"]["text"] for _, data in events if data.get("delta", {}).get("type") == "text_delta"]
    assert "".join(texts) == "Let me see.So it is."


def test_ends(served: Served) -> None:
    plain = ask(served, stop_sequences=["END"])
    cut = answered(MessagesWriter(plain, served, "x"), updates_of(served.tokenizer, "ok END", stop=["END"]))
    assert (cut["content"], cut["stop_reason"]) == ([{"type": "text", "text": "ok"}], "stop_sequence")
    assert cut["stop_sequence"] == "END"
    long = answered(MessagesWriter(plain, served, "x"), updates_of(served.tokenizer, "ok", finished="length"))
    assert long["stop_reason"] == "max_tokens"
    end = answered(MessagesWriter(plain, served, "x"), updates_of(served.tokenizer, ""))
    assert (end["content"], end["stop_reason"]) == ([], "end_turn")


def test_an_answer_goes_back_as_it_was_written(served: Served) -> None:
    options = {"tools": TOOLS, "thinking": {"type": "adaptive"}}
    wanted = ask(served, **options)
    body = answered(MessagesWriter(wanted, served, "x"), updates_of(served.tokenizer, REPLY))
    results = [{"type": "tool_result", "tool_use_id": "1", "content": "warm"}]
    turns = [{"role": "assistant", "content": body["content"]}, {"role": "user", "content": results}]
    again = ask(served, messages=[*HI, *turns], **options)
    assert served.tokenizer.decode(again.prompt[len(wanted.prompt) :]).startswith(REPLY + "<|observation|>")


def test_tokens_are_counted_of_any_length(served: Served) -> None:
    wanted = ask(served, system="Be brief", tools=TOOLS)
    body = {"model": "glm", "messages": HI, "system": "Be brief", "tools": TOOLS}
    assert MessageTokensCount.model_validate(count_tokens(body, served)).input_tokens == len(wanted.prompt)
    long = [{"role": "user", "content": "word " * 3000}]
    assert count_tokens({"messages": long}, served)["input_tokens"] > served.max_positions
