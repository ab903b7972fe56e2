"""Replies against the chat template that writes them, and everything that is no reply."""

import json
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data.chat.conversation import Conversation
from glmforge.data.chat_template.template import render
from glmforge.data.tokens.special import ASSISTANT
from glmforge.verify.reply import MalformedReply, Reply, ToolCall, argument_value, parse_reply
from helpers.random_conversations import arguments_of, record, split_answer

CALL = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"


def test_what_the_template_writes_is_read_back() -> None:
    """The last message of random conversations, and every one before it as if the conversation ended there."""
    draw, seen = random.Random(0), {"reasoning": 0, "calls": 0, "plain": 0}
    for _ in range(300):
        made = record(draw)
        for number, message in enumerate(made["messages"]):
            if message["role"] != "assistant":
                continue
            conversation = Conversation.from_messages(made["messages"][: number + 1], made.get("tools"))
            text = render(conversation.messages, conversation.tools)
            reply = parse_reply(text.rpartition(ASSISTANT)[2])
            assert (reply.reasoning, reply.content) == split_answer(message)
            due = [call["function"]["name"] for call in message.get("tool_calls", ())]
            assert [call.name for call in reply.tool_calls] == due
            for call, wanted in zip(reply.tool_calls, message.get("tool_calls", ()), strict=True):
                arguments = arguments_of(wanted)
                assert list(call.arguments) == list(arguments)
                for key, value in arguments.items():
                    written = call.arguments[key]
                    assert written == value if isinstance(value, str) else json.loads(written) == value
            seen["reasoning" if reply.reasoning else "calls" if reply.tool_calls else "plain"] += 1
    assert min(seen.values()) > 50


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("\nYes.", Reply(content="Yes.")),
        ("\n<think></think>\nYes.", Reply(content="Yes.")),
        (" <think>\nWhy?\n</think> a < b && b > c", Reply("Why?", "a < b && b > c")),
        (CALL * 2, Reply(tool_calls=(ToolCall("f", {"a": "1"}),) * 2)),
        ("Wait.\n<tool_call> f \n\n  </tool_call>\n", Reply(content="Wait.", tool_calls=(ToolCall("f", {}),))),
        (CALL.replace(">1<", "> x\n<"), Reply(tool_calls=(ToolCall("f", {"a": " x\n"}),))),
    ],
)
def test_space_between_tags_does_not_matter(text: str, reply: Reply) -> None:
    assert parse_reply(text) == reply


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the reply is empty"),
        ("<think></think>\n ", "the reply is empty"),
        ("<think>Why?", "the answer contains the tag <think>"),
        ("Why?</think>Yes.", "the answer contains the tag </think>"),
        ("<think>a<think>b</think>Yes.", "the reasoning contains the tag <think>"),
        ("<think>a</think>Yes.</think>", "the answer contains the tag </think>"),
        ("Yes.\n<tool_response>\n1\n</tool_response>", "the answer contains the tag <tool_response>"),
        ("Yes.</tool_call>", "the answer contains the tag </tool_call>"),
        (CALL.removesuffix("</tool_call>"), "tool call 'f' is not closed"),
        (CALL.replace("</arg_value>", ""), "tool call 'f' has argument 'a' without a value or end"),
        (CALL.replace("f\n", "f\nfirst "), "or contains something other than arguments"),
        (CALL.replace("f\n", "f"), "does not start with a line containing its name"),
        (CALL.replace("f\n", " \n"), "does not start with a line containing its name"),
        (CALL + CALL.replace("f\n", "f"), "does not start with a line containing its name"),
        (
            CALL.replace("1<", "1\n<arg_key>b</arg_key>\n<arg_value>2<"),
            "argument 'a' of tool call 'f' contains the tag <arg_key>",
        ),
        (CALL.replace("f\n", "f\n<arg_key>a</arg_key> <arg_value>2</arg_value>"), "argument 'a' twice"),
        (f"{CALL} That is all.", "unexpected text after the tool calls: 'That is all.'"),
    ],
)
def test_what_is_malformed_is_told(text: str, problem: str) -> None:
    with pytest.raises(MalformedReply) as told:
        parse_reply(text)
    assert problem in str(told.value)


def test_values_are_json_where_they_can_be() -> None:
    assert [argument_value(text) for text in ("1", "[1", "null", '{"a": []}', "x", "[" * 100_000)] == [
        1, "[1", None, {"a": []}, "x", "[" * 100_000
    ]  # fmt: skip


@given(st.lists(st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "f\n", "x"])))
def test_any_text_is_a_reply_or_malformed(parts: list[str]) -> None:
    with suppress(MalformedReply):
        parse_reply("".join(parts))
