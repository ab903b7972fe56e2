"""OpenAI's chat completions: https://platform.openai.com/docs/api-reference/chat

Beside OpenAI's fields: `reasoning_content` in messages and answers; `thinking` as Z.ai has it (`{"type": "disabled",
"clear_thinking": false}`), `chat_template_kwargs` as vLLM has it, `thinking_token_budget`; `continue_final_message`;
`stop_reason` in answers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glmforge.generate.answer import Update
from glmforge.generate.params import MAX_TOP_LOGPROBS, SamplingParams
from glmforge.protocol.budget import SHARES, Thinking
from glmforge.protocol.openai import (
    NOT_ENDED,
    Counts,
    common,
    error,
    logprob_body,
    refuse_failed,
    sampling,
    schema_of,
    stop_reason,
)
from glmforge.protocol.prompt import MAX_LENGTH, Talk, ask_for
from glmforge.protocol.reply import Message, Piece, ReplyParser
from glmforge.protocol.request import Ask, Context, Event, Fields, invalid, quoted, refusing
from glmforge.protocol.tools import MAX_TOOLS, Tool

__all__ = ["ChatWriter", "error", "parse"]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal")


def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        shared = common(fields, context)
        _refuse_unsupported(fields)
        params = SamplingParams(
            **sampling(fields, context),
            max_new_tokens=MAX_LENGTH,
            logprobs=_num_logprobs(fields),
            json_schema=schema_of(fields, "response_format"),
        )
        talk = replace(read_talk(fields), hold_calls=not shared["stream"])
        max_name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        return replace(ask_for(talk, params, fields.integer(max_name, 1), context), **shared)


def read_talk(fields: Fields) -> Talk:
    """Messages, tools and thinking of a body."""
    messages = [message_of(one) for one in fields.parts("messages")]
    if not messages:
        raise invalid("messages", "at least one message is required")
    prefill = None
    if fields.flag("continue_final_message"):
        if messages[-1]["role"] != "assistant":
            raise invalid("continue_final_message", "the last message is not the assistant's")
        prefill = messages.pop()["content"]
    choice, named = _choice(fields)
    return Talk(
        messages,
        [_tool(one) for one in fields.parts("tools", MAX_TOOLS)],
        choice,
        named,
        parallel=fields.flag("parallel_tool_calls", True),
        thinking=_thinking(fields),
        prefill=prefill,
    )


def message_of(given: Fields) -> dict[str, Any]:
    """A message with the fields that a conversation knows."""
    role = given.choice("role", ROLES, "")
    if not role:
        raise invalid(given.where("role"), "is required")
    message: dict[str, Any] = {"role": role, "content": text_of(given, "content")}
    if role == "assistant":
        for name in ("reasoning_content", "reasoning"):
            if name in given:
                message["reasoning_content"] = given.text(name)
        calls = [_past_call(call) for call in given.parts("tool_calls")]
        if calls:
            message["tool_calls"] = calls
    return message


def text_of(given: Fields, name: str) -> str:
    """Text, or the texts of a list of parts. Raises `ApiError` for parts of another kind, such as images."""
    content = given.get(name)
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in given.parts(name):
        kind = part.text("type", "text")
        if kind not in _TEXT_TYPES:
            raise invalid(part.where("type"), f"{quoted(kind)} is not supported: this model reads text only")
        texts.append(part.text("refusal" if kind == "refusal" else "text"))
    return "".join(texts)


class _Choice:
    """What has been written of one answer."""

    def __init__(self, parser: ReplyParser) -> None:
        self.parser, self.message = parser, Message()
        self.logprobs: list[dict[str, Any]] = []
        self.ends: dict[str, Any] = {"finish_reason": None}


class ChatWriter:
    """Answers in the form of chat completions, or chunks of them."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        assert ask.reply is not None, "chat has one"
        self._ask, self._tokenizer, self._counts = ask, context.tokenizer, Counts(ask)
        self._head = {"id": answer_id, "created": context.created, "model": ask.model}
        self._choices = [_Choice(ReplyParser(self._tokenizer, ask.reply)) for _ in range(ask.params.num_samples)]

    def begin(self) -> list[Event]:
        """The role of every choice."""
        return [self._chunk(number, {"role": "assistant", "content": ""}) for number in range(len(self._choices))]

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        refuse_failed(update)
        choice = self._choices[update.sample]
        self._counts.add(update)
        pieces = [] if update.token is None else choice.parser.add([update.token])
        if update.token is not None and update.logprob is not None and update.token not in self._tokenizer.stop_ids:
            choice.logprobs.append(logprob_body(self._tokenizer, update.token, update.logprob))
        if update.finished is not None:
            pieces += choice.parser.finish()
            finish = _finish_reason(update.finished, choice.parser)
            choice.ends = {"finish_reason": finish, "stop_reason": stop_reason(update, self._tokenizer)}
        if not self._ask.stream:
            choice.message.add(pieces)
            return []
        events = [self._chunk(update.sample, delta) for piece in pieces if (delta := self._delta(update.sample, piece))]
        if update.finished is not None:
            events.append(self._chunk(update.sample, {}, choice.ends))
        if events and choice.logprobs:
            events[0].data["choices"][0]["logprobs"] = {"content": choice.logprobs, "refusal": None}
            choice.logprobs = []
        return events

    def end(self) -> list[Event]:
        """Usage, if it is asked for."""
        if not self._ask.include_usage:
            return []
        return [Event(None, self._body("chat.completion.chunk", []) | {"usage": self._usage()})]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [
            {
                "index": number,
                "message": self._message(number, one.message),
                "logprobs": self._logprobs(one),
                **one.ends,
            }
            for number, one in enumerate(self._choices)
        ]
        return self._body("chat.completion", choices) | {"usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        return self._counts.body(sum(one.parser.num_reasoning for one in self._choices))

    def _logprobs(self, choice: _Choice) -> dict[str, Any] | None:
        return None if self._ask.params.logprobs is None else {"content": choice.logprobs, "refusal": None}

    def _message(self, sample: int, message: Message) -> dict[str, Any]:
        calls = [
            {
                "id": self._call_id(sample, number),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments, _) in enumerate(message.calls)
        ]
        said: dict[str, Any] = {"role": "assistant", "content": message.content or (None if calls else "")}
        said["refusal"] = None
        if message.reasoning:
            said["reasoning_content"] = message.reasoning
        return said | ({"tool_calls": calls} if calls else {})

    def _delta(self, sample: int, piece: Piece) -> dict[str, Any]:
        if piece.kind in ("reasoning", "content"):
            return {"reasoning_content" if piece.kind == "reasoning" else "content": piece.text}
        call: dict[str, Any] = {"index": piece.call}
        if piece.kind == "call":
            call |= {"id": self._call_id(sample, piece.call), "type": "function"}
            return {"tool_calls": [call | {"function": {"name": piece.text, "arguments": ""}}]}
        return {"tool_calls": [call | {"function": {"arguments": piece.text}}]} if piece.kind == "arguments" else {}

    def _call_id(self, sample: int, number: int) -> str:
        return f"call_{self._head['id']}_{sample}_{number}"

    def _chunk(self, sample: int, delta: dict[str, Any], ends: Mapping[str, Any] = NOT_ENDED) -> Event:
        choice = {"index": sample, "delta": delta, "logprobs": None, **ends}
        usage = {"usage": None} if self._ask.include_usage else {}
        return Event(None, self._body("chat.completion.chunk", [choice]) | usage)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": kind, "choices": choices}


def _finish_reason(finished: str | None, parser: ReplyParser) -> str:
    """An answer that was cancelled ends where a limit has ended it."""
    if finished != "stop":
        return "length"
    return "tool_calls" if parser.num_calls else "stop"


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse("audio", "this model writes text only")
    fields.refuse("modalities", "this model writes text only", [["text"]])
    fields.refuse("web_search_options", "there is no search", [])
    for name, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        fields.refuse(name, f"use {instead}", [[], "none", "auto"])
    for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"):
        fields.refuse(name, "use response_format")


def _num_logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not fields.flag("logprobs"):
        if top:
            raise invalid("top_logprobs", "needs logprobs: true")
        return None
    return top or 0


def _tool(given: Fields) -> Tool:
    kind = given.text("type", "function")
    if kind != "function":
        raise invalid(given.where("type"), f"{quoted(kind)} is not supported; only functions are")
    function = given.part("function")
    if function is None:
        raise invalid(given.where("function"), "is required")
    return Tool.of(function, "parameters")


def _choice(fields: Fields) -> tuple[str, str | None]:
    """`auto`, `none` or `required`, and the function that is named."""
    if not isinstance(fields.get("tool_choice"), Mapping):
        return fields.choice("tool_choice", ("auto", "none", "required"), "auto"), None
    wanted = fields.part("tool_choice")
    function = None if wanted is None else wanted.part("function")
    if wanted is None or function is None or wanted.text("type", "function") != "function":
        raise invalid("tool_choice", 'must be a text, or {"type": "function", "function": {"name": ...}}')
    return "required", function.text("name")


def _past_call(given: Fields) -> dict[str, Any]:
    function = given.part("function")
    if function is None:
        raise invalid(given.where("function"), "is required")
    return {"function": {"name": function.text("name"), "arguments": function.get("arguments")}}


def _thinking(fields: Fields) -> Thinking:
    """Of whichever field says it."""
    enabled, clear = True, True
    if (said := fields.part("thinking")) is not None:
        enabled = said.choice("type", ("enabled", "disabled", "auto"), "enabled") != "disabled"
        clear = said.flag("clear_thinking", True)
    if (said := fields.part("chat_template_kwargs")) is not None:
        enabled = said.flag("enable_thinking", enabled)
        clear = said.flag("clear_thinking", clear)
    effort = fields.choice("reasoning_effort", tuple(SHARES), "")
    return Thinking(enabled, effort or None, fields.integer("thinking_token_budget", 0), clear)
