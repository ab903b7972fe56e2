r"""A model's reply in GLM's format taken apart: reasoning, answer, tool calls.

The inverse of what the chat template writes of an assistant's message, up to the space around each text:

    \n<think>REASONING</think>\nANSWER\n<tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    </tool_call>

All of it but one part may be missing. Space between tags does not matter, as it does not to the servers that read this
format. All else does: what is not closed, stands in the wrong place or is written twice is malformed, and an agent that
was sent such a reply would act on half of it.

The format quotes nothing. A value that spells a tag of the format cannot be distinguished from one whose end is
missing, and is taken for that.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.errors import GlmforgeError

_SPACE = re.compile(r"\s*")
_OPENING = re.compile(r"\s*<tool_call>([^\n<]*)\n")
_CLOSING = re.compile(r"\s*</tool_call>")
_TAG = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")


class MalformedReply(GlmforgeError):
    """A reply that is not in GLM's format, and why."""


@dataclass(frozen=True)
class ToolCall:
    """A call as it is written: arguments are text, raw or JSON as the function's schema says; see `argument_value`."""

    name: str
    arguments: dict[str, str]


@dataclass(frozen=True)
class Reply:
    """What a reply consists of; "" and () where it has none."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def parse_reply(text: str) -> Reply:
    """Take a reply apart.

    Args:
        text: what the model wrote after its prompt, without the token that ended it.

    Raises:
        MalformedReply: it is empty, or not in the format.
    """
    reasoning, start = _enclosed(text, 0, "think") or ("", 0)
    _refuse_tags(reasoning, "the reasoning")
    content, opening, _ = text[start:].partition("<tool_call>")
    _refuse_tags(content, "the answer")
    calls = _tool_calls(text, start + len(content)) if opening else ()
    reply = Reply(reasoning.strip(), content.strip(), calls)
    if reply == Reply():
        raise MalformedReply("the reply is empty")
    return reply


def reply_message(text: str) -> dict[str, Any]:
    """The assistant's message that a reply is, for the next prompt; one that is malformed is text as it stands."""
    try:
        reply = parse_reply(text)
    except MalformedReply:
        return {"role": "assistant", "content": text, "reasoning_content": ""}
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in reply.tool_calls]
    message = {"role": "assistant", "content": reply.content, "reasoning_content": reply.reasoning}
    return message | ({"tool_calls": calls} if calls else {})


def argument_value(text: str) -> Any:
    """The value of an argument whose type is not known: what its JSON says, or the text if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def visible_answer(text: str, stops: Sequence[str] = ()) -> str:
    """The answer in what a model wrote: what follows the reasoning, up to a stop string; "" if there is none.

    A stop string inside the reasoning does not end the answer: "Question:" in a chain of thought is no new question. A
    reply that was cut while the model reasoned has no answer.
    """
    _, end, answer = text.rpartition("</think>")
    if not end and "<think>" in text:
        return ""
    answer = answer.lstrip("\n") if end else text
    ends = [place for stop in stops if stop and (place := answer.find(stop)) >= 0]
    return answer[: min(ends)] if ends else answer


def _tool_calls(text: str, place: int) -> tuple[ToolCall, ...]:
    """All calls from `place` to the end of the text."""
    calls = []
    while opening := _OPENING.match(text, place):
        call = ToolCall(opening[1].strip(), {})
        if not call.name:
            break
        place = _read_arguments(text, opening.end(), call)
        closing = _CLOSING.match(text, place)
        if closing is None:
            raise MalformedReply(f"tool call {call.name!r} is not closed, or contains something other than arguments")
        place = closing.end()
        calls.append(call)
    rest = text[place:].strip()
    if rest.startswith("<tool_call>"):
        raise MalformedReply("a tool call does not start with a line containing its name")
    if rest:
        raise MalformedReply(f"unexpected text after the tool calls: {rest[:40]!r}")
    return tuple(calls)


def _read_arguments(text: str, place: int, call: ToolCall) -> int:
    """Add to `call` the arguments from `place` on; where they end."""
    while argument := _enclosed(text, place, "arg_key"):
        key, place = argument
        given = _enclosed(text, place, "arg_value")
        if given is None:
            raise MalformedReply(f"tool call {call.name!r} has argument {key!r} without a value or end")
        value, place = given
        _refuse_tags(key, f"the name of an argument of tool call {call.name!r}")
        _refuse_tags(value, f"argument {key!r} of tool call {call.name!r}")
        if key in call.arguments:
            raise MalformedReply(f"tool call {call.name!r} has argument {key!r} twice")
        call.arguments[key] = value
    return place


def _enclosed(text: str, place: int, tag: str) -> tuple[str, int] | None:
    """What the tag and its end enclose at `place`, space before it aside, and the place behind; None without both."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    space = _SPACE.match(text, place)
    start = (place if space is None else space.end()) + len(opening)
    end = text.find(closing, start)
    if end < 0 or text[start - len(opening) : start] != opening:
        return None
    return text[start:end], end + len(closing)


def _refuse_tags(text: str, where: str) -> None:
    if tag := _TAG.search(text):
        raise MalformedReply(f"{where} contains the tag {tag[0]}")
