"""Anthropic's Messages, which coding agents speak. https://docs.anthropic.com/en/api/messages

Reasoning comes as thinking blocks. Their signature is a digest that is not checked: a block that is handed back counts
by its text, as far as the chat template keeps it (turns since the last question; all with `clear_thinking: false`).
Thinking is off unless a body asks for it. A call is told of when it is whole, unless its tool has
`eager_input_streaming`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field

from glmforge.generate.answer import Update
from glmforge.generate.params import SamplingParams
from glmforge.protocol.blocks import BlockWriter, ReplyBlock
from glmforge.protocol.body import Asked, Body, OneOf, Positive, Strings, TextPart, joined, refuse, refusing, text_or
from glmforge.protocol.prompt import MAX_LENGTH, Effort, Talk, Thinking, ask_for, rendered
from glmforge.protocol.request import ApiError, Ask, Context, Event, invalid
from glmforge.protocol.tools import MAX_TOOLS, Tool

_ERRORS = {
    "authentication": "authentication_error", "permission": "permission_error", "not_found": "not_found_error",
    "too_large": "request_too_large", "rate_limit": "rate_limit_error", "timeout": "timeout_error",
    "overloaded": "overloaded_error", "server": "api_error",
}  # fmt: skip
_NoTools = Annotated[Any, refuse("this server runs no tools", [])]
Text = Annotated[str, joined(TextPart, "\n")]


def error(refusal: ApiError) -> dict[str, Any]:
    """A refusal as a body, or as the data of the event `error`."""
    kind = _ERRORS.get(refusal.kind, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(refusal)}}


class _Thought(Body):
    thinking: str


class _ToolUse(Body):
    name: str
    input: dict[str, Any] = {}


class _ToolResult(Body):
    content: Text = ""


_UserBlock = OneOf("type", text=TextPart, tool_result=_ToolResult, redacted_thinking=Body)
_AssistantBlock = OneOf("type", text=TextPart, thinking=_Thought, tool_use=_ToolUse, redacted_thinking=Body)


class _User(Body):
    content: Annotated[Any, text_or(Annotated[Any, _UserBlock])]

    def written(self) -> list[dict[str, Any]]:
        """Messages as OpenAI has them. What tools have returned goes before what the user says with it."""
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        results = [{"role": "tool", "content": one.content} for one in self.content if isinstance(one, _ToolResult)]
        texts = [one.text for one in self.content if isinstance(one, TextPart)]
        return results + ([{"role": "user", "content": "\n".join(texts)}] if texts or not results else [])


class _Assistant(Body):
    content: Annotated[Any, text_or(Annotated[Any, _AssistantBlock])]

    def written(self) -> list[dict[str, Any]]:
        """As `_User` has it."""
        if isinstance(self.content, str):
            return [{"role": "assistant", "content": self.content}]
        texts = [one.text for one in self.content if isinstance(one, TextPart)]
        thoughts = [one.thinking for one in self.content if isinstance(one, _Thought)]
        uses = [one for one in self.content if isinstance(one, _ToolUse)]
        message = {"role": "assistant", "content": "".join(texts), "reasoning_content": "\n".join(thoughts)}
        calls = [{"function": {"name": one.name, "arguments": one.input}} for one in uses]
        return [message | ({"tool_calls": calls} if calls else {})]


class _System(Body):
    content: Text

    def written(self) -> list[dict[str, Any]]:
        """As `_User` has it."""
        return [{"role": "system", "content": self.content}]


_Turn = Annotated[Any, OneOf("role", user=_User, assistant=_Assistant, system=_System)]


class _Tool(Tool):
    type: Literal["custom"] = "custom"
    parameters: dict[str, Any] = Field(alias="input_schema")
    eager_input_streaming: bool = False


class _Choice(Body):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"] = "disabled"
    budget_tokens: Positive | None = None
    clear_thinking: bool = True


class _Format(Body):
    type: Literal["json_schema"] = "json_schema"
    answers: dict[str, Any] = Field(alias="schema")


class _Output(Body):
    effort: Effort | None = None
    format: _Format | None = None


class _Body(Asked):
    system: Text = ""
    messages: Annotated[list[_Turn], FailFast(), Field(min_length=1)]
    max_tokens: Positive | None = None
    stop_sequences: Strings = []
    tools: Annotated[list[_Tool], FailFast(), Field(max_length=MAX_TOOLS)] = []
    tool_choice: _Choice = _Choice()
    thinking: _Thinking = _Thinking()
    output_config: _Output = _Output()
    container: _NoTools = None
    mcp_servers: _NoTools = None

    def talk(self) -> Talk:
        """Raises `ApiError`."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages += [message for turn in self.messages for message in turn.written()]
        said, choice = self.thinking, self.tool_choice
        enabled = said.type != "disabled"
        kind = "required" if choice.type in ("any", "tool") else choice.type
        if choice.type == "tool" and choice.name is None:
            raise invalid("tool_choice.name", "is required")
        if enabled and kind == "required":
            raise invalid("tool_choice", "a call cannot be required while thinking is enabled")
        prefill = None
        if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
            prefill = messages.pop()["content"]
            if enabled:
                raise invalid("messages", "the last message cannot be the assistant's while thinking is enabled")
        named = choice.name if choice.type == "tool" else None
        thinking = Thinking(enabled, self.output_config.effort, said.budget_tokens, said.clear_thinking)
        hold_calls = not (self.stream and any(tool.eager_input_streaming for tool in self.tools))
        parallel = not choice.disable_parallel_tool_use
        return Talk(messages, self.tools, kind, named, parallel, thinking, prefill, hold_calls)


@refusing()
def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    given = _Body.model_validate(body)
    shared = given.shared(context)
    if given.max_tokens is None:
        raise invalid("max_tokens", "is required")
    wanted = given.output_config.format
    params = SamplingParams(
        **given.sampling(context) | {"stop": given.stop_sequences, "num_samples": 1},
        max_new_tokens=MAX_LENGTH,
        json_schema=None if wanted is None else wanted.answers,
    )
    return replace(ask_for(given.talk(), params, given.max_tokens, context), **shared)


@refusing()
def count_tokens(body: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Tokens of the prompt that a body makes. Raises `ApiError`."""
    given = _Body.model_validate(body)
    given.shared(context)
    talk = given.talk()
    return {"input_tokens": len(rendered(talk, context, thinking=talk.thinking.enabled))}


_TYPES = {"reasoning": ("thinking", "thinking"), "content": ("text", "text"), "call": ("input_json", "partial_json")}
"""Of a kind of block: what its deltas are called, and the field that has their text."""


class MessagesWriter(BlockWriter):
    """An answer as a message, or as the events that build it block by block."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        super().__init__(ask, context, answer_id)
        self._ends: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def begin(self) -> list[Event]:
        """An empty message. What of the prompt was cached is told at the end."""
        return [self._event("message_start", message=self.whole())]

    def end(self) -> list[Event]:
        """Why it has ended, and usage."""
        delta = self._event("message_delta", delta=self._ends, usage=self._usage())
        return [delta, self._event("message_stop")]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        content = [self._content(one) for one in self._blocks]
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._ask.model, "content": content}
        return head | self._ends | {"usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        """Tokens from the cache are counted apart."""
        return {
            "input_tokens": self._counts.num_prompt - self._counts.num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._counts.num_cached,
            "output_tokens": self._counts.num_tokens,
        }

    def _finish(self, update: Update) -> None:
        reason, stop = "max_tokens", update.stop if isinstance(update.stop, str) else None
        if update.finished == "stop":
            reason = "stop_sequence" if stop is not None else "tool_use" if self._parser.num_calls else "end_turn"
        self._ends = {"stop_reason": reason, "stop_sequence": stop}

    def _content(self, block: ReplyBlock) -> dict[str, Any]:
        """What is known of a block; nothing but its name, when it begins."""
        if block.kind == "reasoning":
            signature = _signature(block.text) if block.text else ""
            return {"type": "thinking", "thinking": block.text, "signature": signature}
        if block.kind == "content":
            return {"type": "text", "text": block.text}
        given = json.loads(block.text) if block.is_whole else {}
        return {"type": "tool_use", "id": f"toolu_{self._id}_{block.number}", "name": block.name, "input": given}

    def _begun(self, block: ReplyBlock) -> Iterator[Event]:
        yield self._event("content_block_start", index=block.number, content_block=self._content(block))

    def _more(self, block: ReplyBlock, text: str) -> Event:
        name, field = _TYPES[block.kind]
        delta = {"type": f"{name}_delta", field: text}
        return self._event("content_block_delta", index=block.number, delta=delta)

    def _ended(self, block: ReplyBlock) -> Iterator[Event]:
        if block.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": _signature(block.text)}
            yield self._event("content_block_delta", index=block.number, delta=delta)
        yield self._event("content_block_stop", index=block.number)


def _signature(thinking: str) -> str:
    return hashlib.sha256(thinking.encode(errors="replace")).hexdigest()
