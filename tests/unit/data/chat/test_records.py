"""Records of every kind become the same conversation, and wrong ones say what is wrong."""

import json

import pytest

from glmforge.data.chat.conversation import Conversation
from glmforge.data.chat.records import conversation_of
from glmforge.errors import DataError

TOOLS = [{"name": "f", "parameters": {}}]
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}
USER, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
SYSTEM = {"role": "system", "content": "S"}
PLAIN = Conversation.from_messages([USER, ANSWER])
WITH_SYSTEM = Conversation.from_messages([SYSTEM, USER, ANSWER])
WITH_TOOL = Conversation.from_messages(
    [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "T"}, ANSWER], TOOLS
)
OPENAI_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def with_result(content: object, **fields: object) -> dict[str, object]:
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    return {"messages": [USER, called, {"role": "tool", "content": content}, ANSWER], **fields}


def with_tools(tools: list[dict[str, object]] | None, result: object) -> Conversation:
    """The conversation that `with_result` is a record of."""
    messages = [{"role": "tool", "content": result} if m["role"] == "tool" else m for m in WITH_TOOL.messages]
    return Conversation(tuple(messages), tools and tuple(tools), (None,) * 4)


def answering(**fields: object) -> dict[str, object]:
    return {"messages": [USER, ANSWER | fields]}


def share_gpt(*turns: tuple[str, str], **fields: object) -> dict[str, object]:
    return {"conversations": [{"from": speaker, "value": value} for speaker, value in turns], **fields}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": [USER, ANSWER], "tools": None, "id": 7, "source": "web"}, PLAIN),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, ANSWER]}, PLAIN),
        ({"messages": [{"role": "developer", "content": "S"}, USER, ANSWER]}, WITH_SYSTEM),
        ({"messages": [USER, ANSWER], "system": "S"}, WITH_SYSTEM),
        (with_result(["T"], functions=TOOLS), with_tools([{"type": "function", "function": TOOLS[0]}], ["T"])),
        (with_result([{"output": "A"}, "B", 3], tools=TOOLS), with_tools(TOOLS, ["A", "B", "3"])),
        (with_result([{"type": "text", "text": "A"}, {"type": "text", "value": "B"}]), with_tools(None, "AB")),
        (answering(thinking="R"), Conversation.from_messages([USER, ANSWER | {"reasoning_content": "R"}])),
        (
            {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A", "reasoning": "R"}]},
            Conversation.from_messages([USER, ANSWER | {"reasoning_content": "R"}]),
        ),
        (share_gpt(("human", "Q"), ("gpt", "A")), PLAIN),
        (share_gpt(("user", "Q"), ("assistant", "A"), system="S"), WITH_SYSTEM),
        ({"instruction": "Q", "input": "", "output": "A"}, PLAIN),
        ({"instruction": "Q", "output": "A", "system": "S"}, WITH_SYSTEM),
        ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, WITH_SYSTEM),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
                    {"role": "tool", "content": "T", "tool_call_id": "1"},
                    ANSWER,
                ],
                "tools": TOOLS,
            },
            WITH_TOOL,
        ),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
                    {"role": "function", "name": "f", "content": "T"},
                    ANSWER,
                ],
                "tools": json.dumps(TOOLS),
            },
            WITH_TOOL,
        ),
        (
            share_gpt(
                ("human", "Q"),
                ("function_call", '{"name": "f", "arguments": {"a": 1}}'),
                ("observation", "T"),
                ("gpt", "A"),
                tools=json.dumps(TOOLS),
            ),
            WITH_TOOL,
        ),
    ],
)
def test_every_kind_is_one_conversation(record, expected):
    assert conversation_of(record) == expected


def test_alpaca_joins_input_and_takes_history():
    record = {"instruction": "Q", "input": "I", "output": "A", "history": [["q", "a"]]}
    assert [message["content"] for message in conversation_of(record).messages] == ["q", "a", "Q\nI", "A"]


def test_calls_in_turns_of_their_own_belong_to_one_message():
    calls = [("gpt", "Let me see."), ("function_call", '{"name": "f"}'), ("function_call", '[{"name": "g"}]')]
    conversation = conversation_of(share_gpt(("human", "Q"), *calls, ("observation", "T"), ("gpt", "A")))
    message = conversation.messages[1]
    assert message["content"] == "Let me see."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f", "g"]
    assert len(conversation.messages) == 4


@pytest.mark.parametrize(
    ("fields", "reasoning", "answer"),
    [
        ({"content": "A", "reasoning_content": "R"}, "R", "A"),
        ({"content": "A", "reasoning": "R"}, "R", "A"),
        ({"content": "<think>R</think>A"}, "R", "A"),
        ({"content": "R</think>A"}, "R", "A"),
        ({"content": "A</think>B", "reasoning_content": ""}, "", "A</think>B"),
    ],
)
def test_reasoning_has_a_field_of_its_own(fields, reasoning, answer):
    message = conversation_of({"messages": [USER, {"role": "assistant", **fields}]}).messages[1]
    assert (message["reasoning_content"], message["content"]) == (reasoning, answer)


def test_weights_are_kept_where_they_are_given():
    messages = [USER | {"loss_weight": 0.0}, ANSWER | {"loss_weight": 0.5}, USER, ANSWER | {"weight": 1}, USER, ANSWER]
    assert conversation_of({"messages": messages}).weights == (0.0, 0.5, None, 1.0, None, None)


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({}, "not a conversation: it has the fields none, but needs messages, or conversations, or instruction"),
        ({"mesages": []}, "not a conversation: it has the fields mesages"),
        ({"messages": []}, r"messages must be a list of at least one message, not \[\]"),
        ({"messages": [USER]}, "last message must be the assistant's, not of role 'user'"),
        ({"messages": [USER, ANSWER, 3]}, "message 2: 3 is not a message with role and content"),
        ({"messages": [{"role": "robot", "content": "x"}, ANSWER]}, "message 0: unknown role 'robot'"),
        ({"messages": [{"role": "user", "content": 3}, ANSWER]}, "message 0: content must be text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ANSWER]},
            r"message 0: .* text parts "
            r"only \('text'\)",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "content": "x"}]}, ANSWER]}, "message 0: .* text"),
        (with_result([{"temperature": 20}]), "message 2: content has the result {'temperature': 20}"),
        (with_result([]), "message 2: content is an empty list"),
        (with_result({"output": "x"}), "message 2: content must be text"),
        ({"messages": [USER, ANSWER], "images": ["a.png"]}, "it has images, but this model supports text only"),
        ({"messages": [USER, ANSWER], "tools": TOOLS, "functions": TOOLS}, "both tools and functions"),
        (answering(thinking="R", reasoning="S"), "message 1: reasoning and thinking differ"),
        ({"messages": [USER | {"thinking": "R"}, ANSWER]}, "message 0: thinking in a message of role 'user'"),
        (
            {"messages": [{"role": "user", "content": " "}, ANSWER]},
            "message 0: the user message is empty; add content, or remove",
        ),
        (
            {"messages": [USER, {"role": "assistant"}]},
            "message 1: the assistant message is empty; add content or tool_calls",
        ),
        ({"messages": [USER | {"tool_calls": [CALL]}, ANSWER]}, "message 0: tool_calls in a message of role 'user'"),
        (
            {"messages": [USER, {"role": "tool", "content": "T"}, ANSWER]},
            "message 1: a tool result without a preceding tool call",
        ),
        ({"messages": [USER, ANSWER], "tool": TOOLS}, r"field 'tool' is unknown; did you mean 'tools'\?"),
        ({"messages": [USER, ANSWER], "tools": "{"}, "tools:1: not valid JSON"),
        (answering(reasoning_contents="R"), "message 1: field 'reasoning_contents' .* 'reasoning_content'"),
        (answering(tool_calls=3), "message 1: tool_calls must be a list"),
        (answering(tool_calls=["f"]), "message 1: 'f' is not a tool call with name and"),
        (answering(tool_calls=[{"name": ""}]), "message 1: a tool call's name"),
        (answering(tool_calls=[{"name": "f", "arguments": "{"}]), "message 1, arguments of tool call 'f'.* not valid"),
        (answering(tool_calls=[{"name": "f", "arguments": [1]}]), "message 1: arguments of .* must be a mapping"),
        (answering(loss_weight="1"), "message 1: loss_weight must be a number"),
        (answering(loss_weight=-1), "message 1: loss_weight -1 must be 0, or from"),
        (
            {"messages": [USER | {"loss_weight": 1}, ANSWER]},
            "message 0: loss_weight 1 .* only assistant messages are trained on",
        ),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "message 0: needs from"),
        (share_gpt(("human", "Q"), ("function_call", "f(1)")), "message 1, function_call:1: not valid JSON"),
        ({"instruction": 3, "output": "A"}, "instruction and input must be text"),
        ({"instruction": "Q", "output": "A", "history": ["q"]}, "history must be a list of pairs"),
        ({"conversations": [], "chosen": {}, "rejected": {}}, "a preference pair"),
        ({"messages": [USER, ANSWER], "label": False}, "marked as bad"),
    ],
)
def test_a_wrong_record_says_what_is_wrong(record, complaint):
    with pytest.raises(DataError, match=complaint) as error:
        conversation_of(record)
    assert "\n" not in str(error.value)
