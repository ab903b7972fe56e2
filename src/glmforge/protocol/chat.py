"""OpenAI's chat completions.

Beside OpenAI's fields: `reasoning_content` in messages, answers and streams; thinking by `chat_template_kwargs`
(`enable_thinking`), `thinking` (`type`, `budget_tokens`) or `reasoning_effort` (`none` to `high`); the settings of
sampling that vLLM and SGLang have. A call that must be (`tool_choice`) and an answer that is JSON (`response_format`)
are written without thinking: the reply is begun for the model, or follows a grammar.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from glmforge.files import shown
from glmforge.generate.answer import Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.protocol.budget import effort_budget
from glmforge.protocol.fields import Sampling, check_model, read_body, rendered, sampling_params, token_text
from glmforge.protocol.reply import Call, Part, Reasoning, ReplyParser
from glmforge.protocol.request import ApiError, Ask, Context, Event, ReplySettings

MAX_CHOICES = 128
_MAX_TOOLS = 1024


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(Sampling):
    messages: list[Any]
    tools: Annotated[list[Any], Field(max_length=_MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: _StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    modalities: list[str] | None = None
    functions: list[Any] | None = None


def parse(body: object, context: Context) -> Ask:
    """Raises `ApiError`."""
    read = read_body(_Body, body)
    check_model(read.model, context)
    if read.modalities not in (None, ["text"]):
        raise ApiError("invalid_request", "modalities: this model writes text only", "modalities")
    if read.functions:
        raise ApiError("invalid_request", "functions: is not supported any more; use tools", "functions")
    tools, forced, choice = read_tools(read.tools, read.tool_choice)
    schema = json_schema(read.response_format, "response_format")
    thinks, budget = _thinking(read)
    if (forced or schema is not None) and thinks:
        thinks = False
        if asked_to_think(read):
            what = "tool_choice" if forced else "response_format"
            raise ApiError("invalid_request", f"{what}: cannot be combined with thinking; switch it off", what)
    if forced and schema is not None:
        raise ApiError("invalid_request", "response_format: cannot be combined with a call that must be", "tool_choice")
    prompt = rendered(read.messages, None if choice == "none" else read.tools, context, thinking=thinks)
    prefix = forced_prefix(forced, context)
    params = sampling_params(
        (*prompt, *prefix),
        read.max_completion_tokens or read.max_tokens,
        read,
        context,
        field="max_tokens" if read.max_completion_tokens is None else "max_completion_tokens",
        num_samples=read.n,
        logprobs=(read.top_logprobs or 0) if read.logprobs else None,
        json_schema=schema,
    )
    if read.top_logprobs is not None and not read.logprobs:
        raise ApiError("invalid_request", "top_logprobs: goes with logprobs: true", "top_logprobs")
    return Ask(
        prompt=(*prompt, *prefix),
        params=params,
        model=read.model,
        stream=read.stream,
        reply=ReplySettings(prefix, {} if choice == "none" else tools, not read.parallel_tool_calls),
        reasoning_budget=budget if thinks else None,
        include_usage=read.stream_options is not None and read.stream_options.include_usage,
        priority=read.priority or 0,
        timeout=read.timeout,
        id=read.request_id,
    )


def read_tools(tools: Sequence[Any] | None, choice: object) -> tuple[dict[str, Mapping[str, Any]], str | None, str]:
    """Schemas of parameters by name; the function that must be called, "" for any, None for none; and the choice."""
    found: dict[str, Mapping[str, Any]] = {}
    for number, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name.strip() or "\n" in name or len(name) > 200:
            raise ApiError("invalid_request", f"tools[{number}]: is not a function with a name", "tools")
        assert isinstance(function, Mapping)
        schema = function.get("parameters")
        found[name] = schema if isinstance(schema, Mapping) else {}
    if isinstance(choice, Mapping):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, Mapping) else None
        if not isinstance(name, str) or name not in found:
            raise ApiError("invalid_request", "tool_choice: names no function of tools", "tool_choice")
        return found, name, "required"
    choice = choice or ("auto" if found else "none")
    if choice not in ("none", "auto", "required"):
        raise ApiError("invalid_request", "tool_choice: must be none, auto, required or a function", "tool_choice")
    if choice == "required" and not found:
        raise ApiError("invalid_request", "tool_choice: required, but there are no tools", "tool_choice")
    return found, (next(iter(found)) if len(found) == 1 else "") if choice == "required" else None, str(choice)


def forced_prefix(forced: str | None, context: Context) -> tuple[int, ...]:
    """The beginning of a call, with its name if there is no choice."""
    if forced is None:
        return ()
    tokenizer = context.tokenizer
    name = tokenizer.encode(f"{forced}\n") if forced else []
    return (*tokenizer.encode("\n"), tokenizer.special_id("<tool_call>"), *name)


def json_schema(given: Mapping[str, Any] | None, field_name: str) -> Mapping[str, Any] | None:
    """The schema that an answer must follow; `{}` for any JSON."""
    kind = (given or {}).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    assert given is not None
    inner = given.get("json_schema", given)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if kind != "json_schema" or not isinstance(schema, Mapping):
        raise ApiError(
            "invalid_request", f"{field_name}: must be text, json_object, or json_schema with a schema", field_name
        )
    return schema


def asked_to_think(body: _Body) -> bool:
    """Whether the request says so itself, rather than the template's default."""
    switch = (body.chat_template_kwargs or {}).get("enable_thinking")
    kind = (body.thinking or {}).get("type")
    return switch is True or kind == "enabled" or body.reasoning_effort not in (None, "none")


def _thinking(body: _Body) -> tuple[bool, int | None]:
    """Whether the model is to think, and in how many tokens at most."""
    switch = (body.chat_template_kwargs or {}).get("enable_thinking", True)
    kind = (body.thinking or {}).get("type", "enabled")
    budget = (body.thinking or {}).get("budget_tokens", body.thinking_budget)
    if not isinstance(switch, bool):
        raise ApiError("invalid_request", "chat_template_kwargs.enable_thinking: must be true or false")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise ApiError("invalid_request", "thinking.type: must be enabled or disabled", "thinking")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or not 0 <= budget < 2**31):
        raise ApiError("invalid_request", f"thinking.budget_tokens: {shown(repr(budget)[:50])} is no number of tokens")
    if not switch or kind == "disabled" or body.reasoning_effort == "none":
        return False, None
    return True, effort_budget(body.reasoning_effort) if budget is None else budget


@dataclass
class _Choice:
    """What has been written of one sample."""

    parser: ReplyParser
    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop: int | str | None = None
    num_tokens: int = 0


class ChatWriter:
    """Answers as chat completions, or chunks of them."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        assert ask.reply is not None, "chat replies are taken apart"
        self._ask, self._context, self._id = ask, context, answer_id
        self._choices = [_Choice(ReplyParser(context.tokenizer, ask.reply)) for _ in range(ask.params.num_samples)]
        self._num_cached = 0

    def begin(self) -> list[Event]:
        return [self._chunk(number, {"role": "assistant", "content": ""}) for number in range(len(self._choices))]

    def update(self, update: Update) -> list[Event]:
        choice, number = self._choices[update.sample], update.sample
        self._num_cached = update.num_cached
        choice.num_tokens += update.token is not None
        told = self._logprobs(choice, update)
        parts = list(choice.parser.add(update.token, update.text))
        if update.finished is not None:
            parts += choice.parser.finish()
            choice.finish = finish_reason(update, choice.parser.num_calls)
            choice.stop = update.stop
        deltas = list(self._deltas(choice, parts)) or ([{}] if told else [])
        events = [
            self._chunk(number, delta, logprobs=told if place == 0 else None) for place, delta in enumerate(deltas)
        ]
        if choice.finish is not None:
            events.append(self._chunk(number, {}, finish=choice.finish, stop=choice.stop))
        return events

    def end(self) -> list[Event]:
        if not self._ask.include_usage:
            return []
        return [Event(None, self._head("chat.completion.chunk") | {"choices": [], "usage": self.usage()})]

    def whole(self) -> dict[str, Any]:
        choices = []
        for number, one in enumerate(self._choices):
            message: dict[str, Any] = {"role": "assistant", "content": one.content or None, "refusal": None}
            if one.reasoning:
                message["reasoning_content"] = one.reasoning
            if one.calls:
                message["tool_calls"] = [
                    {name: value for name, value in call.items() if name != "index"} for call in one.calls
                ]
            elif not one.content:
                message["content"] = ""
            logprobs = {"content": one.logprobs, "refusal": None} if self._ask.params.logprobs is not None else None
            choices.append(
                {
                    "index": number,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": one.finish or "stop",
                    "stop_reason": one.stop,
                }
            )
        return self._head("chat.completion") | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Numbers of tokens, in OpenAI's words."""
        return usage_of(self._ask, sum(one.num_tokens for one in self._choices), self._num_cached)

    def _deltas(self, choice: _Choice, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
        for part in parts:
            if isinstance(part, Call):
                call = {
                    "index": len(choice.calls),
                    "id": f"call_{secrets.token_hex(12)}",
                    "type": "function",
                    "function": {"name": part.name, "arguments": part.arguments},
                }
                choice.calls.append(call)
                yield {"tool_calls": [call]}
            elif isinstance(part, Reasoning):
                choice.reasoning += part.text
                yield {"reasoning_content": part.text}
            else:
                choice.content += part.text
                yield {"content": part.text}

    def _logprobs(self, choice: _Choice, update: Update) -> dict[str, Any] | None:
        if update.token is None or update.logprob is None:
            return None
        one = token_logprobs(self._context, update.token, update.logprob)
        choice.logprobs.append(one)
        return {"content": [one], "refusal": None}

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        stop: int | str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> Event:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        if finish is not None:
            choice["stop_reason"] = stop
        usage = {"usage": None} if self._ask.include_usage else {}
        return Event(None, self._head("chat.completion.chunk") | {"choices": [choice], **usage})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._context.created, "model": self._ask.model}


def finish_reason(update: Update, num_calls: int) -> str:
    """In OpenAI's words."""
    if update.finished == "stop":
        return "tool_calls" if num_calls else "stop"
    return "length" if update.finished == "length" else "stop"


def usage_of(ask: Ask, num_tokens: int, num_cached: int) -> dict[str, Any]:
    """`usage` of OpenAI's chat completions and completions."""
    num_prompt = len(ask.prompt)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt + num_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def token_logprobs(context: Context, token: int, found: TokenLogprob) -> dict[str, Any]:
    """As chat completions have it."""

    def told(one: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_text(context, one),
            "logprob": max(logprob, -9999.0),
            "bytes": list(context.tokenizer.token_bytes(one)),
        }

    return told(token, found.logprob) | {"top_logprobs": [told(*one) for one in found.top]}


def error(failure: ApiError) -> dict[str, Any]:
    """In OpenAI's form."""
    kinds = {
        "authentication": "authentication_error",
        "permission": "permission_error",
        "rate_limit": "rate_limit_error",
        "invalid_request": "invalid_request_error",
        "not_found": "invalid_request_error",
        "too_large": "invalid_request_error",
    }
    code = {"not_found": "model_not_found", "rate_limit": "rate_limit_exceeded", "authentication": "invalid_api_key"}
    return {
        "error": {
            "message": failure.message,
            "type": kinds.get(failure.kind, "server_error"),
            "param": failure.param,
            "code": code.get(failure.kind),
        }
    }
