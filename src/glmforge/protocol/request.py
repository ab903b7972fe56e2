"""What any API asks for, as one thing: `Ask`. What it refuses, as one thing: `ApiError`.

Each API's module parses a body into an `Ask` and writes answers in that API's form. Nothing here knows a web
framework. A module of an API offers:

    parse(body, context) -> Ask
    a Writer(ask, context, answer_id)
    error(ApiError) -> body
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.files import shown
from glmforge.generate.answer import Update
from glmforge.generate.params import SamplingParams

Kind = Literal[
    "invalid_request", "authentication", "permission", "not_found", "too_large", "rate_limit", "timeout", "overloaded",
    "server",
]  # fmt: skip


class ApiError(GlmforgeError):
    """A refusal in one line; every API writes it in its own form.

    Args:
        status: of HTTP.
        kind: what sort of refusal; an API has its own name for it.
        param: the field of the body that is wrong.
        code: OpenAI's finer name, such as `context_length_exceeded`.
    """

    def __init__(self, status: int, kind: Kind, message: str, param: str | None = None, code: str | None = None):
        super().__init__(shown(message))
        self.status, self.kind, self.param, self.code = status, kind, param, code


def invalid(param: str | None, problem: str, code: str | None = None) -> ApiError:
    """The refusal of a body, 400, that names the field."""
    return ApiError(400, "invalid_request", problem if param is None else f"{param}: {problem}", param, code)


@dataclass(frozen=True)
class ReplySettings:
    """What the parser of a reply has to know.

    Attributes:
        in_thought: the prompt ends within a thought that it has opened.
        in_content: the prompt ends within the answer, whose beginning it has.
        prefix: first tokens of the reply that stand in the prompt already, such as the name of a call.
        tools: JSON schemas of the parameters of the functions that may be called, by name; without any, a call is text.
        stop, min_new_tokens: as the engine has them; they do not count within a thought.
        hold_calls: tell of a call when it is whole, and of one that is malformed as text. Without, its arguments are
            told of while they come.
    """

    in_thought: bool = False
    in_content: bool = False
    prefix: tuple[int, ...] = ()
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0
    hold_calls: bool = True


@dataclass(frozen=True)
class Ask:
    """A request of any API.

    Attributes:
        prompt: token ids; the chat template has been applied.
        prompts: of completions with several prompts, all of them, `prompt` first; each gets `params.num_samples`
            answers, numbered on: answer k of prompt i is sample i * num_samples + k.
        model: the name that the client asked for; answers give it back.
        reply: how replies are read; None for plain text.
        reasoning_budget: if set, the prompt ends within a thought (`reply.in_thought`). The thought is generated first,
            up to `</think>` and at most this many tokens, with `params` less stop strings, grammar, schema and
            `stop_ids`; if it has not ended, `</think>` is put behind it. The answer follows, with all of `params`;
            `max_new_tokens` counts both. The writer gets updates of every token, the one put in as well.
        max_tokens_zero: score the prompt alone; nothing generated is returned.
        prompt_logprobs: whether the answer tells those of the prompt.
        timeout: seconds.
        id: the client's own, for abort.
        extra: what only the API's own writer understands; of a conversation the `Talk`.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    stream: bool = False
    reply: ReplySettings | None = None
    reasoning_budget: int | None = None
    echo: bool = False
    max_tokens_zero: bool = False
    include_usage: bool = False
    priority: int = 0
    timeout: float | None = None
    id: str | None = None
    model: str = ""
    prompts: tuple[tuple[int, ...], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class Context(Protocol):
    """What parsing needs to know of the server.

    Attributes:
        model_names: that a body may name; the first is the default.
        default_max_tokens: of an answer whose body does not say.
        created: Unix time in seconds.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def model_names(self) -> Sequence[str]: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def default_max_tokens(self) -> int: ...
    @property
    def created(self) -> int: ...


class Event(NamedTuple):
    """One of a stream: its name, where the API names them, and its JSON."""

    name: str | None
    data: dict[str, Any]


class Writer(Protocol):
    """An answer in an API's form. `begin`, each `update` and `end` tell the events of a stream, `whole` the body when
    all updates have been taken. `update` raises `ApiError` for an answer that has failed."""

    def begin(self) -> list[Event]: ...
    def update(self, update: Update) -> list[Event]: ...
    def end(self) -> list[Event]: ...
    def whole(self) -> dict[str, Any]: ...


def quoted(value: object) -> str:
    """As errors show a value: short, in one line."""
    try:
        return shown(_SHORT.repr(value)[:80])
    except (ValueError, RecursionError):
        return "a value that cannot be shown"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 78
