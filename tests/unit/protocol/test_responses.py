"""OpenAI's Responses: items in, items and events out, as OpenAI's own client reads them."""

import json
from typing import Any

import openai
import pytest
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from glmforge.protocol.request import ApiError, Ask
from glmforge.protocol.responses import ResponsesWriter, parse
from helpers.replies import Served, answered, streamed, updates_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
REPLY = (
    "\n<think>which é</think>\nLet me see."
    "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n"
    "</tool_call>"
)
EVENTS = TypeAdapter(ResponseStreamEvent)


def ask(served: Served, **body: Any) -> Ask:
    return parse({"model": "glm", "input": "hi"} | body, served)


def test_items_become_messages(served: Served) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "see"}]},
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "Bern"}'},
        {"type": "function_call", "call_id": "2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "warm"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "cold"}]},
    ]
    text = served.tokenizer.decode(ask(served, input=items, instructions="Be brief", tools=TOOLS).prompt)
    assert text.endswith(
        "<|system|>\nBe brief<|user|>\na<|assistant|>\n<think>why</think>\nsee\n<tool_call>weather\n"
        "<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>\n<tool_call>weather\n</tool_call>"
        "<|observation|>\n<tool_response>\nwarm\n</tool_response>\n<tool_response>\ncold\n</tool_response><|assistant|>"
    )


def test_settings(served: Served) -> None:
    found = ask(served, max_output_tokens=9, reasoning={"effort": "none"}, temperature=0, store=True, n=3)
    assert (found.params.max_new_tokens, found.params.temperature, found.params.num_samples) == (9, 0, 1)
    assert served.tokenizer.decode(found.prompt).endswith("<think></think>")
    schema = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"}
    assert ask(served, text=schema).params.json_schema == SCHEMA
    named = ask(served, tools=TOOLS, tool_choice={"type": "function", "name": "weather"})
    assert served.tokenizer.decode(named.prompt).endswith("<tool_call>weather\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "x"}, "previous_response_id"), ({"conversation": "x"}, "conversation"),
        ({"background": True}, "background"), ({"prompt": {"id": "x"}}, "prompt"), ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"), ({"input": 5}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(served: Served, body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask(served, **body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_response_and_its_stream(served: Served) -> None:
    updates = list(updates_of(served.tokenizer, REPLY, num_cached=4))
    body = answered(ResponsesWriter(ask(served, tools=TOOLS), served, "resp_1"), iter(updates))
    whole = Response.model_validate(body)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
    assert whole.output_text == "Let me see."
    assert (whole.status, whole.usage and whole.usage.input_tokens_details.cached_tokens) == ("completed", 4)
    call = body["output"][2]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Zürich"})
    events = streamed(ResponsesWriter(ask(served, tools=TOOLS, stream=True), served, "resp_1"), iter(updates))
    state = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    for number, event in enumerate(events):
        assert (event.name, event.data["sequence_number"]) == (event.data["type"], number)
        state.handle_event(EVENTS.validate_python(event.data))
    assert events[-1].data["response"] == body
    names = [event.name for event in events]
    assert names[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert names.count("response.output_item.done") == 3
    deltas = [event.data["delta"] for event in events if event.name == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"]


def test_a_cut_answer_is_incomplete(served: Served) -> None:
    half = REPLY[: REPLY.index("ürich")]
    updates = list(updates_of(served.tokenizer, half, finished="length"))
    events = streamed(ResponsesWriter(ask(served, tools=TOOLS, stream=True), served, "r"), iter(updates))
    assert events[-1].name == "response.incomplete"
    last = Response.model_validate(events[-1].data["response"])
    assert last.incomplete_details is not None
    assert last.incomplete_details.reason == "max_output_tokens"
    assert events[-1].data["response"]["output"][-1]["status"] == "incomplete"
    assert "response.function_call_arguments.done" not in [event.name for event in events]
