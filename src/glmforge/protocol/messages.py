"""Anthropic's Messages, which coding agents speak.

Reasoning comes as thinking blocks. Their signature is a digest, so that a client that hands a block back unchanged is
understood; the reasoning itself goes back into the prompt, where the chat template keeps it up to the next question.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from glmforge.generate.answer import Update
from glmforge.protocol.chat import forced_prefix, read_tools
from glmforge.protocol.fields import Sampling, check_model, read_body, rendered, sampling_params
from glmforge.protocol.reply import Call, Content, Part, ReplyParser
from glmforge.protocol.request import ApiError, Ask, Context, Event, ReplySettings


class _Body(Sampling):
    messages: list[Any]
    max_tokens: Annotated[int, Field(ge=1)]
    system: str | list[Any] | None = None
    stop_sequences: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class _Count(Sampling):
    messages: list[Any]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    thinking: dict[str, Any] | None = None


def parse(body: object, context: Context) -> Ask:
    """Raises `ApiError`."""
    read = read_body(_Body, body)
    check_model(read.model, context)
    thinks, budget = _thinking(read.thinking)
    choice = read.tool_choice or {}
    kind = choice.get("type", "auto")
    if kind not in ("auto", "any", "tool", "none"):
        raise ApiError("invalid_request", "tool_choice.type: must be auto, any, tool or none", "tool_choice")
    wanted: object = {"any": "required", "tool": {"function": {"name": choice.get("name")}}}.get(str(kind), kind)
    functions = [_function(tool, number) for number, tool in enumerate(read.tools or ())]
    tools, forced, _ = read_tools(functions, wanted if functions else None)
    if forced is not None and thinks:
        raise ApiError("invalid_request", "tool_choice: a call that must be cannot be combined with thinking")
    prefix = forced_prefix(forced, context)
    given = None if kind == "none" else functions
    prompt = (*rendered(_messages(read.system, read.messages), given, context, thinking=thinks), *prefix)
    if read.stop_sequences:
        read.stop = [*([read.stop] if isinstance(read.stop, str) else read.stop or []), *read.stop_sequences]
    params = sampling_params(prompt, read.max_tokens, read, context)
    return Ask(
        prompt=prompt,
        params=params,
        model=read.model,
        stream=read.stream,
        reply=ReplySettings(prefix, {} if kind == "none" else tools, choice.get("disable_parallel_tool_use") is True),
        reasoning_budget=budget,
        include_usage=True,
        priority=read.priority or 0,
        timeout=read.timeout,
        id=read.request_id,
    )


def count_tokens(body: object, context: Context) -> dict[str, Any]:
    """Of a prompt. Raises `ApiError`."""
    read = read_body(_Count, body)
    check_model(read.model, context)
    functions = [_function(tool, number) for number, tool in enumerate(read.tools or ())]
    thinks, _ = _thinking(read.thinking)
    return {"input_tokens": len(rendered(_messages(read.system, read.messages), functions, context, thinking=thinks))}


def _thinking(given: Mapping[str, Any] | None) -> tuple[bool, int | None]:
    """Off unless it is asked for, as in Anthropic's API."""
    kind = (given or {}).get("type", "disabled")
    budget = (given or {}).get("budget_tokens")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise ApiError("invalid_request", "thinking.type: must be enabled, adaptive or disabled", "thinking")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or not 1 <= budget < 2**31):
        raise ApiError("invalid_request", "thinking.budget_tokens: must be a number of tokens", "thinking")
    return kind != "disabled", budget if kind == "enabled" else None


def _function(tool: object, number: int) -> dict[str, Any]:
    """A tool as OpenAI writes it, for the chat template."""
    if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
        raise ApiError("invalid_request", f"tools.{number}: is not a tool with a name", "tools")
    if "input_schema" not in tool:
        raise ApiError("invalid_request", f"tools.{number}: tools of the server are not supported; give input_schema")
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _messages(system: str | list[Any] | None, messages: Sequence[Any]) -> list[dict[str, Any]]:
    """In OpenAI's form. What a tool has returned becomes a message of its own, before what the user says with it."""
    found: list[dict[str, Any]] = []
    if text := _text(system or "", "system"):
        found.append({"role": "system", "content": text})
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant", "system"):
            raise ApiError("invalid_request", f"{where}: needs role, user or assistant, and content", "messages")
        found += _turn(message["role"], message.get("content"), where)
    return found


def _turn(role: str, content: object, where: str) -> Iterator[dict[str, Any]]:
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        raise ApiError("invalid_request", f"{where}.content: must be text or a list of blocks", "messages")
    texts, thoughts, calls, results = [], [], [], []
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append({"function": {"name": block.get("name"), "arguments": block.get("input")}})
        elif kind == "tool_result":
            results.append(_text(block.get("content") or "", f"{where}.content.{place}"))
        elif kind != "redacted_thinking":
            raise ApiError("invalid_request", f"{where}.content.{place}: this model reads text only", "messages")
    for result in results:
        yield {"role": "tool", "content": result}
    if role == "assistant":
        answer = {"role": role, "content": "".join(texts), "reasoning_content": "\n".join(thoughts)}
        yield answer | ({"tool_calls": calls} if calls else {})
    elif texts or not results:
        yield {"role": role, "content": "\n".join(texts)}


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)
        for block in content
    ):
        return "\n".join(block["text"] for block in content)
    raise ApiError("invalid_request", f"{where}: must be text or a list of text blocks", where.partition(".")[0])


class MessagesWriter:
    """An answer as a message, or as the events that build it up block by block."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        assert ask.reply is not None, "messages are taken apart"
        self._ask, self._id = ask, answer_id
        self._parser = ReplyParser(context.tokenizer, ask.reply)
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False
        self._num_tokens = self._num_cached = 0
        self._stop_reason = "end_turn"
        self._stop: str | None = None

    def begin(self) -> list[Event]:
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": self._usage()}
        return [Event("message_start", {"type": "message_start", "message": message})]

    def update(self, update: Update) -> list[Event]:
        self._num_tokens += update.token is not None
        self._num_cached = update.num_cached
        parts = list(self._parser.add(update.token, update.text))
        if update.finished is not None:
            parts += self._parser.finish()
            self._stop = update.stop if isinstance(update.stop, str) else None
            self._stop_reason = _stop_reason(update, self._parser.num_calls)
        return [event for part in parts for event in self._events(part)]

    def end(self) -> list[Event]:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop}
        last = {"type": "message_delta", "delta": delta, "usage": self._usage()}
        return [*self._close(), Event("message_delta", last), Event("message_stop", {"type": "message_stop"})]

    def whole(self) -> dict[str, Any]:
        blocks = [_signed(block) for block in self._blocks]
        ends = {"stop_reason": self._stop_reason, "stop_sequence": self._stop, "usage": self._usage()}
        return self._message(blocks) | ends

    def _events(self, part: Part) -> Iterator[Event]:
        if isinstance(part, Call):
            yield from self._close()
            block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": part.name}
            yield from self._open(block | {"input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})
            self._blocks[-1] = block | {"input": part.input}
            yield from self._close()
            return
        kind, field = ("text", "text") if isinstance(part, Content) else ("thinking", "thinking")
        if not self._is_open or self._blocks[-1]["type"] != kind:
            yield from self._close()
            yield from self._open({"type": kind, field: ""} | ({"signature": ""} if kind == "thinking" else {}))
        self._blocks[-1][field] += part.text
        yield self._delta({"type": f"{kind}_delta", field: part.text})

    def _open(self, block: dict[str, Any]) -> Iterator[Event]:
        self._is_open = True
        self._blocks.append(dict(block))
        place = len(self._blocks) - 1
        start = {"type": "content_block_start", "index": place, "content_block": block}
        yield Event("content_block_start", start)

    def _close(self) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        if self._blocks[-1]["type"] == "thinking":
            signature = _signed(self._blocks[-1])["signature"]
            yield self._delta({"type": "signature_delta", "signature": signature})
        yield Event("content_block_stop", {"type": "content_block_stop", "index": len(self._blocks) - 1})

    def _delta(self, delta: dict[str, Any]) -> Event:
        content = {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}
        return Event("content_block_delta", content)

    def _message(self, blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._ask.model, "content": list(blocks)
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        """Tokens from the cache are counted apart, as Anthropic does it."""
        return {
            "input_tokens": len(self._ask.prompt) - self._num_cached,
            "cache_read_input_tokens": self._num_cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self._num_tokens,
        }


def error(failure: ApiError) -> dict[str, Any]:
    """In Anthropic's form."""
    kinds = {
        "invalid_request": "invalid_request_error",
        "authentication": "authentication_error",
        "permission": "permission_error",
        "not_found": "not_found_error",
        "too_large": "request_too_large",
        "rate_limit": "rate_limit_error",
        "timeout": "timeout_error",
        "unavailable": "overloaded_error",
        "internal": "api_error",
    }
    return {"type": "error", "error": {"type": kinds[failure.kind], "message": failure.message}}


def _signed(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] != "thinking":
        return dict(block)
    return {**block, "signature": hashlib.sha256(block["thinking"].encode(errors="replace")).hexdigest()}


def _stop_reason(update: Update, num_calls: int) -> str:
    if update.finished == "length":
        return "max_tokens"
    if isinstance(update.stop, str):
        return "stop_sequence"
    return "tool_use" if num_calls else "end_turn"
