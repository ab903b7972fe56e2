"""A conversation in one form for all kinds of records: checked, with nothing left to interpret.

`Conversation.from_messages` takes what OpenAI's interface calls messages and says in one line what is wrong with them.
Rendered, its result is what the template makes of the messages as given: texts in parts are joined, reasoning that was
written into the answer has a field of its own, arguments of calls that came as JSON text are values, a tool's list of
results is a list of texts.

A field that is nearly one of those known is refused as misspelt: learning from a conversation whose reasoning was
ignored for a typing error would be worse. Other unknown fields are ignored.
"""

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.data.chat_template.template import split_reasoning
from glmforge.data.tokens.loss_weights import MAX_WEIGHT, MIN_WEIGHT
from glmforge.errors import DataError
from glmforge.files import parse_json, shown

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""What an assistant's reasoning is called: by GLM's template, by servers, by data sets."""

_FIELDS = (
    "role",
    "content",
    *REASONING_FIELDS,
    "tool_calls",
    "function_call",
    "loss_weight",
    "weight",
    "name",
    "tool_call_id",
)
_MAX_FIELDS = 500  # of a record or message: each is compared with those known


@dataclass(frozen=True)
class Conversation:
    """Messages in the template's own form.

    Attributes:
        messages: `role` (system, user, assistant, tool), `content` (text, or a tool's list of texts); of an assistant
            also `reasoning_content` (text) and `tool_calls`, each `{"function": {"name": ..., "arguments": {...}}}`.
        tools: JSON schemas of the functions that may be called, or None.
        weights: for each message, how much it is to be trained on; None where the record does not say.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] | None = None
    weights: tuple[float | None, ...] = ()

    @classmethod
    def from_messages(cls, messages: object, tools: object = None, *, is_prompt: bool = False) -> "Conversation":
        """Check messages and tools as OpenAI's interface has them.

        Args:
            is_prompt: the assistant's answer is still to come, so the last message may be anybody's.

        Raises:
            DataError: what is wrong, and with which message.
        """
        if not isinstance(messages, list | tuple) or not messages:
            raise DataError(f"messages must be a list of at least one message, not {_quoted(messages)}")
        checked = [_checked(message, f"message {number}") for number, message in enumerate(messages)]
        _check_order([message for message, _ in checked], is_prompt=is_prompt)
        return cls(
            tuple(message for message, _ in checked), _checked_tools(tools), tuple(weight for _, weight in checked)
        )

    @property
    def has_reasoning(self) -> bool:
        return any(message.get("reasoning_content", "").strip() for message in self.messages)

    def without_reasoning(self) -> "Conversation":
        """The same answers, without the thoughts before them."""
        messages = tuple(m | {"reasoning_content": ""} if m["role"] == "assistant" else m for m in self.messages)
        return Conversation(messages, self.tools, self.weights)


def refuse_misspelt(fields: Collection[str], known: Sequence[str], where: str) -> None:
    """Raise a DataError if a field is not one of those known, but nearly so."""
    if len(fields) > _MAX_FIELDS:
        raise DataError(f"{where}: has {len(fields):,} fields, too many for a conversation; is it the right file?")
    for field in fields:
        near = difflib.get_close_matches(field, known, n=1, cutoff=0.85) if field not in known else []
        if near:
            raise DataError(f"{where}: field '{shown(field)}' is unknown; did you mean '{near[0]}'?")


def _checked(given: object, where: str) -> tuple[dict[str, Any], float | None]:
    """A message in the template's form, and its loss weight."""
    if not isinstance(given, Mapping):
        raise DataError(f"{where}: {_quoted(given)} is not a message with role and content")
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise DataError(f"{where}: unknown role {_quoted(role)}; known: {', '.join(_ROLES)}")
    present = {field: value for field, value in given.items() if value is not None}
    refuse_misspelt(present, _FIELDS, where)
    read = _results if _ROLES[role] == "tool" else _text
    message: dict[str, Any] = {"role": _ROLES[role], "content": read(present.get("content"), where)}
    if message["role"] == "assistant":
        _add_assistant_fields(message, present, where)
    else:
        for field in (*REASONING_FIELDS, "tool_calls", "function_call"):
            if present.get(field):
                raise DataError(f"{where}: {field} in a message of role '{role}'; only assistant messages may have it")
        if message["role"] == "user" and not message["content"].strip():
            raise DataError(f"{where}: the user message is empty; add content, or remove the record")
    return message, _weight(present, message["role"], where)


def _text(content: object, where: str) -> str:
    """The text of a message's content: a string, nothing, or a list of text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        raise DataError(f"{where}: content must be text or a list of text parts, not {_quoted(content)}")
    return "".join(_part(part, where) for part in content)


def _part(part: object, where: str) -> str:
    """A text, or a mapping with one: `text`, which ShareGPT's files call `value`."""
    text = part
    if isinstance(part, Mapping) and part.get("type", "text") == "text":
        text = part.get("text", part.get("value"))
    if not isinstance(text, str):
        raise DataError(
            f"{where}: content has the part {_quoted(part)}, but this model supports text parts only ('text')"
        )
    return text


def _results(content: object, where: str) -> str | list[str]:
    """What a tool returned: one text, or a list of results, which the template writes one after another.

    A list of text parts is one text, as everywhere; the published template would write them as Python prints them.
    """
    if not isinstance(content, list | tuple):
        return _text(content, where)
    if not content:
        raise DataError(f"{where}: content is an empty list; add the tool's result, or remove the record")
    if all(isinstance(part, Mapping) and part.get("type") == "text" and "output" not in part for part in content):
        return _text(content, where)
    return [_result(item, where) for item in content]


def _result(item: object, where: str) -> str:
    output = item["output"] if isinstance(item, Mapping) and "output" in item else item
    if isinstance(output, bool) or not isinstance(output, str | int | float):
        raise DataError(f"{where}: content has the result {_quoted(item)}: expected text, or an output that is text")
    return str(output)


def _add_assistant_fields(message: dict[str, Any], present: Mapping[str, Any], where: str) -> None:
    given = {field: _text(present[field], f"{where}, {field}") for field in REASONING_FIELDS if field in present}
    stated = {text for text in given.values() if text.strip()}
    if len(stated) > 1:
        raise DataError(f"{where}: {' and '.join(given)} differ; keep one of them")
    if given:
        message["reasoning_content"] = next(iter(stated), "")
    elif "</think>" in message["content"]:
        message["reasoning_content"], message["content"] = split_reasoning(message["content"])
    calls = present.get("tool_calls") or ([present["function_call"]] if present.get("function_call") else [])
    if not isinstance(calls, list | tuple):
        raise DataError(f"{where}: tool_calls must be a list of calls, not {_quoted(calls)}")
    if calls:
        message["tool_calls"] = [{"function": _call(call, where)} for call in calls]
    elif not message["content"].strip() and not message.get("reasoning_content", "").strip():
        raise DataError(f"{where}: the assistant message is empty; add content or tool_calls, or remove the record")


def _call(given: object, where: str) -> dict[str, Any]:
    function = given.get("function", given) if isinstance(given, Mapping) else given
    if not isinstance(function, Mapping):
        raise DataError(f"{where}: {_quoted(given)} is not a tool call with name and arguments")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name.strip() or "\n" in name:
        raise DataError(f"{where}: a tool call's name must be one line of text, not {_quoted(name)}")
    if isinstance(arguments, str) and arguments.strip():
        source = f"{where}, arguments of tool call '{shown(name)}'"
        arguments = parse_json(arguments, dict, source=source, error=DataError)
    if not isinstance(arguments or {}, Mapping):
        raise DataError(f"{where}: arguments of tool call '{shown(name)}' must be a mapping, not {_quoted(arguments)}")
    return {"name": name, "arguments": dict(arguments or {})}


def _weight(present: Mapping[str, Any], role: str, where: str) -> float | None:
    """`loss_weight`, which OpenAI's files for fine-tuning call `weight`."""
    weight = present.get("loss_weight", present.get("weight"))
    if weight is None:
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise DataError(f"{where}: loss_weight must be a number, not {_quoted(weight)}")
    if weight and not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise DataError(f"{where}: loss_weight {weight:g} must be 0, or from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    if weight and role != "assistant":
        raise DataError(
            f"{where}: loss_weight {weight:g} in a message of role '{role}'; only assistant messages are trained on"
        )
    return float(weight)


def _checked_tools(tools: object) -> tuple[Mapping[str, Any], ...] | None:
    if isinstance(tools, str) and tools.strip():
        tools = parse_json(tools, list, source="tools", error=DataError)
    if not tools:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(f"tools must be a list of JSON schemas, not {_quoted(tools)}")
    return tuple(tools)


def _check_order(messages: Sequence[Mapping[str, Any]], *, is_prompt: bool) -> None:
    if messages[-1]["role"] != "assistant" and not is_prompt:
        raise DataError(f"the last message must be the assistant's, not of role '{messages[-1]['role']}'")
    for number, message in enumerate(messages):
        before = messages[number - 1] if number else {}
        if message["role"] == "tool" and before.get("role") != "tool" and not before.get("tool_calls"):
            raise DataError(f"message {number}: a tool result without a preceding tool call")


def _quoted(value: object) -> str:
    return shown(repr(value)[:100])
