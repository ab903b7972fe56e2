"""Anthropic's Messages, which coding agents speak. https://docs.anthropic.com/en/api/messages

Reasoning comes as thinking blocks. Their signature is a digest that is not checked: a block that is handed back counts
by its text, as far as the chat template keeps it (turns since the last question; all with `clear_thinking: false`).
Thinking is off unless a body asks for it. A call is told of when it is whole, unless its tool has
`eager_input_streaming`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from glmforge.generate.answer import Update
from glmforge.generate.params import SamplingParams
from glmforge.protocol.budget import SHARES, Thinking
from glmforge.protocol.openai import BlockReader, common, sampling
from glmforge.protocol.prompt import MAX_LENGTH, Talk, ask_for, rendered
from glmforge.protocol.reply import Step
from glmforge.protocol.request import ApiError, Ask, Context, Event, Fields, invalid, model_of, quoted, refusing
from glmforge.protocol.tools import MAX_TOOLS, Tool

_ERRORS = {
    "authentication": "authentication_error", "permission": "permission_error", "not_found": "not_found_error",
    "too_large": "request_too_large", "rate_limit": "rate_limit_error", "timeout": "timeout_error",
    "overloaded": "overloaded_error", "server": "api_error",
}  # fmt: skip


def error(refusal: ApiError) -> dict[str, Any]:
    """A refusal as a body, or as the data of the event `error`."""
    kind = _ERRORS.get(refusal.kind, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(refusal)}}


def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        shared = common(fields, context)
        max_tokens = fields.integer("max_tokens", 1)
        if max_tokens is None:
            raise invalid("max_tokens", "is required")
        settings = sampling(fields, context) | {"stop": fields.array("stop_sequences"), "num_samples": 1}
        params = SamplingParams(**settings, max_new_tokens=MAX_LENGTH, json_schema=_schema(fields))
        talk = _talk(fields)
        if shared["stream"]:
            eager = any(tool.flag("eager_input_streaming") for tool in fields.parts("tools", MAX_TOOLS))
            talk = replace(talk, hold_calls=not eager)
        return replace(ask_for(talk, params, max_tokens, context), **shared)


def count_tokens(body: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Tokens of the prompt that a body makes. Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        model_of(fields, context)
        talk = _talk(fields)
        return {"input_tokens": len(rendered(talk, context, thinking=talk.thinking.enabled))}


def _talk(fields: Fields) -> Talk:
    for name in ("container", "mcp_servers"):
        fields.refuse(name, "this server runs no tools", [[]])
    messages = [{"role": "system", "content": text}] if (text := _text(fields, "system")) else []
    turns = fields.parts("messages")
    if not turns:
        raise invalid("messages", "at least one message is required")
    for turn in turns:
        messages += _turn(turn)
    choice, named, parallel = _choice(fields)
    thinking = _thinking(fields)
    if thinking.enabled and choice == "required":
        raise invalid("tool_choice", "a call cannot be required while thinking is enabled")
    prefill = None
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        prefill = messages.pop()["content"]
        if thinking.enabled:
            raise invalid("messages", "the last message cannot be the assistant's while thinking is enabled")
    tools = [_tool(one) for one in fields.parts("tools", MAX_TOOLS)]
    return Talk(messages, tools, choice, named, parallel, thinking, prefill)


def _thinking(fields: Fields) -> Thinking:
    """Off unless it is asked for."""
    said, options = fields.part("thinking"), fields.part("output_config")
    effort = "" if options is None else options.choice("effort", tuple(SHARES), "")
    if said is None:
        return Thinking(enabled=False)
    kind = said.choice("type", ("enabled", "disabled", "adaptive"), "disabled")
    budget = said.integer("budget_tokens", 1)
    return Thinking(kind != "disabled", effort or None, budget, said.flag("clear_thinking", True))


def _schema(fields: Fields) -> Any:
    options = fields.part("output_config")
    wanted = None if options is None else options.part("format")
    if wanted is None:
        return None
    wanted.choice("type", ("json_schema",), "json_schema")
    if wanted.part("schema") is None:
        raise invalid(wanted.where("schema"), "is required")
    return dict(wanted.get("schema"))


def _choice(fields: Fields) -> tuple[str, str | None, bool]:
    """What must be called, and whether several calls may be made."""
    said = fields.part("tool_choice")
    if said is None:
        return "auto", None, True
    kind = said.choice("type", ("auto", "any", "tool", "none"), "auto")
    choice = {"any": "required", "tool": "required"}.get(kind, kind)
    return choice, said.text("name") if kind == "tool" else None, not said.flag("disable_parallel_tool_use")


def _tool(given: Fields) -> Tool:
    kind = given.text("type", "custom")
    if kind != "custom":
        raise invalid(given.where("type"), f"{quoted(kind)} is not supported; describe the tool by an input_schema")
    if "input_schema" not in given:
        raise invalid(given.where("input_schema"), "is required")
    return Tool.of(given, "input_schema")


def _turn(given: Fields) -> Iterator[dict[str, Any]]:
    """Messages as OpenAI has them. What tools have returned goes before what the user says with it."""
    role = given.choice("role", ("user", "assistant", "system"), "")
    if not role:
        raise invalid(given.where("role"), "is required")
    if not isinstance(given.get("content"), list | tuple):
        yield {"role": role, "content": given.text("content")}
        return
    texts, thoughts, calls, results = [], [], [], []
    for block in given.parts("content"):
        kind = block.text("type")
        if kind == "text":
            texts.append(block.text("text"))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(block.text("thinking"))
        elif kind == "tool_use" and role == "assistant":
            block.part("input")
            calls.append({"function": {"name": block.text("name"), "arguments": block.get("input") or {}}})
        elif kind == "tool_result" and role == "user":
            results.append({"role": "tool", "content": _text(block, "content")})
        elif kind != "redacted_thinking":
            raise invalid(block.where("type"), f"{quoted(kind)} is not supported in a message of role {role!r}")
    yield from results
    if role == "assistant":
        message = {"role": role, "content": "".join(texts), "reasoning_content": "\n".join(thoughts)}
        yield message | ({"tool_calls": calls} if calls else {})
    elif texts or not results:
        yield {"role": role, "content": "\n".join(texts)}


def _text(given: Fields, name: str) -> str:
    """Text, or the texts of a list of blocks."""
    if not isinstance(given.get(name), list | tuple):
        return given.text(name, "")
    texts = []
    for block in given.parts(name):
        if block.text("type") != "text":
            raise invalid(block.where("type"), f"{quoted(block.get('type'))} is not supported: this model reads text")
        texts.append(block.text("text"))
    return "\n".join(texts)


class MessagesWriter:
    """An answer as a message, or as the events that build it block by block."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        self._read = BlockReader(ask, context)
        self._id, self._model = answer_id, ask.model
        self._ends: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def begin(self) -> list[Event]:
        """An empty message. What of the prompt was cached is told at the end."""
        return [_event("message_start", message=self._message([]))]

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        steps = self._read.take(update)
        if update.finished is not None:
            stop = update.stop if isinstance(update.stop, str) else None
            self._ends = {"stop_reason": self._stop_reason(update), "stop_sequence": stop}
        return list(_events(steps, self._id))

    def end(self) -> list[Event]:
        """Why it has ended, and usage."""
        return [_event("message_delta", delta=self._ends, usage=self._usage()), _event("message_stop")]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        found = []
        for number, one in enumerate(self._read.blocks):
            block = _opened(Step("open", number, one), self._id)
            if one.kind == "reasoning":
                block |= {"thinking": one.text, "signature": _signature(one.text)}
            elif one.kind == "content":
                block["text"] = one.text
            else:
                block["input"] = json.loads(one.text)
            found.append(block)
        return self._message(found)

    def _message(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": blocks}
        return head | self._ends | {"usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        """Tokens from the cache are counted apart."""
        return {
            "input_tokens": self._read.counts.num_prompt - self._read.counts.num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._read.counts.num_cached,
            "output_tokens": self._read.counts.num_tokens,
        }

    def _stop_reason(self, update: Update) -> str:
        if update.finished != "stop":
            return "max_tokens"
        if isinstance(update.stop, str):
            return "stop_sequence"
        return "tool_use" if self._read.parser.num_calls else "end_turn"


def _events(steps: Iterable[Step], answer_id: str) -> Iterator[Event]:
    for step in steps:
        kind, number, block, text = step
        if kind == "open":
            yield _event("content_block_start", index=number, content_block=_opened(step, answer_id))
        elif kind == "text":
            yield _event("content_block_delta", index=number, delta=_delta(block.kind, text))
        else:
            if block.kind == "reasoning":
                delta = {"type": "signature_delta", "signature": _signature(block.text)}
                yield _event("content_block_delta", index=number, delta=delta)
            yield _event("content_block_stop", index=number)


def _opened(step: Step, answer_id: str) -> dict[str, Any]:
    """A block that has nothing yet."""
    if step.block.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    if step.block.kind == "content":
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": f"toolu_{answer_id}_{step.number}", "name": step.block.name, "input": {}}


def _delta(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    if kind == "content":
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}


def _event(kind: str, **data: Any) -> Event:
    return Event(kind, {"type": kind, **data})


def _signature(thinking: str) -> str:
    return hashlib.sha256(thinking.encode(errors="replace")).hexdigest()
