"""Records of conversations as people keep them, distinguished by their fields.

    messages                                OpenAI: role and content; tools, tool_calls, reasoning_content, loss_weight
    conversations                           ShareGPT: from and value; tools as JSON text, system, reasoning_content
    instruction, output                     Alpaca: also input, history (pairs of texts), system
    prompt, completion                      two texts, or two lists of messages

The first kind in this order whose fields are there decides. A preference pair (`chosen`, `rejected`) and an answer
marked as bad (`label: false`, as KTO has it) are refused: their texts are not there to be imitated. So are pictures and
sounds, which this model cannot read. `functions`, which OpenAI's interface had before `tools`, are read as tools.
"""

from collections.abc import Callable, Mapping
from typing import Any

from glmforge.data.chat.conversation import REASONING_FIELDS, Conversation, refuse_misspelt
from glmforge.errors import DataError
from glmforge.files import parse_json, shown

Messages = list[dict[str, Any]]

_SHARE_GPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "function_call": "call",
    "tool_call": "call",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool": "tool",
}

_TURN_FIELDS = (*REASONING_FIELDS, "loss_weight", "weight")
MEDIA_FIELDS = ("images", "image", "videos", "video", "audios", "audio")


def conversation_of(record: Mapping[str, Any]) -> Conversation:
    """The conversation that a record holds.

    Raises:
        DataError: what is wrong with it, in one line without the record's place.
    """
    present = {field: value for field, value in record.items() if value is not None}
    if {"chosen", "rejected"} & present.keys():
        raise DataError("a preference pair (chosen, rejected), not a conversation to imitate")
    if present.get("label") is False:
        raise DataError("an answer that is marked as bad (label: false), not a conversation to imitate")
    for field in MEDIA_FIELDS:
        if present.get(field):
            raise DataError(f"it has {field}, but this model supports text only")
    for needed, known, read in _KINDS:
        if all(field in present for field in needed):
            refuse_misspelt(present, known, "record")
            return Conversation.from_messages(read(present), tools_of(present))
    raise DataError(
        f"not a conversation: it has the fields {shown(', '.join(present)) or 'none'}, but needs "
        + ", or ".join(" and ".join(needed) for needed, _, _ in _KINDS)
    )


def tools_of(record: Mapping[str, Any]) -> object:
    """`tools`, or the `functions` that OpenAI's interface had before: their schemas without the type around them."""
    tools, functions = record.get("tools"), record.get("functions")
    if isinstance(functions, str) and functions.strip():
        functions = parse_json(functions, list, source="functions", error=DataError)
    if not functions:
        return tools
    if tools:
        raise DataError("it has both tools and functions; keep one of them")
    if not isinstance(functions, list | tuple) or not all(isinstance(function, Mapping) for function in functions):
        raise DataError(f"functions must be a list of JSON schemas, not {shown(repr(functions)[:100])}")
    return [{"type": "function", "function": function} for function in functions]


def _openai(record: Mapping[str, Any]) -> Messages:
    return _with_system(record, record["messages"])


def _share_gpt(record: Mapping[str, Any]) -> Messages:
    turns = record["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise DataError("conversations must be a list of turns with from and value")
    messages: Messages = []
    for number, turn in enumerate(turns):
        speaker, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        role = _SHARE_GPT_ROLES.get(speaker) if isinstance(speaker, str) else None
        if role is None or not isinstance(value, str):
            raise DataError(
                f"message {number}: needs from (one of {', '.join(_SHARE_GPT_ROLES)}) and value (text), not "
                f"{shown(repr(turn)[:100])}"
            )
        if role == "call":
            _add_calls(messages, value, number)
        else:
            fields = {field: turn[field] for field in _TURN_FIELDS if turn.get(field) is not None}
            messages.append({"role": role, "content": value, **fields})
    return _with_system(record, messages)


def _add_calls(messages: Messages, value: str, number: int) -> None:
    """A turn of its own for each call becomes part of the assistant's message that it belongs to."""
    parsed = parse_json(value, object, source=f"message {number}, function_call", error=DataError)
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).extend(parsed if isinstance(parsed, list) else [parsed])


def _alpaca(record: Mapping[str, Any]) -> Messages:
    history = record.get("history", [])
    if not isinstance(history, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in history):
        raise DataError("history must be a list of pairs of question and answer")
    parts = (record["instruction"], record.get("input", ""))
    if not all(isinstance(part, str) for part in parts):
        raise DataError("instruction and input must be text")
    question = "\n".join(part for part in parts if part)
    pairs = [*history, (question, record["output"])]
    return _with_system(record, [message for pair in pairs for message in _question_and_answer(*pair)])


def _prompt_completion(record: Mapping[str, Any]) -> Messages:
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        return _with_system(record, [*prompt, *completion])
    return _with_system(record, _question_and_answer(prompt, completion))


def _question_and_answer(question: Any, answer: Any) -> Messages:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _with_system(record: Mapping[str, Any], messages: Messages) -> Messages:
    """The record's own system message, if it has one, first."""
    system = record.get("system")
    return [{"role": "system", "content": system}, *messages] if system else messages


_KINDS: tuple[tuple[tuple[str, ...], tuple[str, ...], Callable[[Mapping[str, Any]], Messages]], ...] = (
    (("messages",), ("messages", "tools", "functions", "system"), _openai),
    (("conversations",), ("conversations", "tools", "functions", "system"), _share_gpt),
    (
        ("instruction", "output"),
        ("instruction", "input", "output", "history", "system", "tools", "functions"),
        _alpaca,
    ),
    (("prompt", "completion"), ("prompt", "completion", "system", "tools", "functions"), _prompt_completion),
)
"""Fields that tell a kind, fields that it may have, and its reader."""

RECORD_FIELDS = tuple(
    dict.fromkeys([*(f for _, known, _ in _KINDS for f in known), "chosen", "rejected", "label", *MEDIA_FIELDS])
)
"""All fields that any kind reads."""
