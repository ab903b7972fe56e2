"""What any API asks for, as one thing; what any API is told, as one thing; and refusals.

An API's module turns a body into an `Ask` (`parse`), and what the engine gives into that API's words (`Writer`). It
knows nothing of HTTP, and the server nothing of an API's fields. Bodies are from outside: whatever they hold, reading
them ends with an `Ask` or an `ApiError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.params import SamplingParams

Kind = Literal[
    "invalid_request", "authentication", "permission", "not_found", "too_large", "rate_limit", "timeout", "unavailable",
    "internal",
]  # fmt: skip
STATUSES: Mapping[Kind, int] = {
    "invalid_request": 400,
    "authentication": 401,
    "permission": 403,
    "not_found": 404,
    "too_large": 413,
    "rate_limit": 429,
    "timeout": 504,
    "unavailable": 503,
    "internal": 500,
}


class ApiError(Exception):
    """A request that is refused or has failed: what kind of failure, one line, and the field that is at fault."""

    def __init__(self, kind: Kind, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.param = kind, message, param

    @property
    def status(self) -> int:
        """Of HTTP."""
        return STATUSES[self.kind]


@dataclass(frozen=True)
class ReplySettings:
    """How a reply is taken apart.

    Attributes:
        prefix: tokens at the end of the prompt that belong to the reply, such as the beginning of a call that must be.
        tools: JSON schemas of the parameters by the function's name. Without any, calls are text.
        one_call: whether calls behind the first one are left out.
    """

    prefix: tuple[int, ...] = ()
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    one_call: bool = False


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        prompt: token ids, with the chat template applied.
        params: with `num_samples`, log-probabilities, stop strings and the rest.
        model: its name as it was asked for.
        reply: None for plain text.
        reasoning_budget: tokens of reasoning at most, after which the thought is closed.
        echo: the prompt is part of the answer.
        include_usage: numbers of tokens at the end of a stream.
        priority: lower ones go first.
        timeout: seconds.
        adapter: the adapter that answers.
        id: the client's own, by which it may be ended.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    model: str
    stream: bool = False
    reply: ReplySettings | None = None
    reasoning_budget: int | None = None
    echo: bool = False
    include_usage: bool = False
    priority: int = 0
    timeout: float | None = None
    adapter: str | None = None
    id: str | None = None


class Context(Protocol):
    """What an API has to know of the server.

    Attributes:
        models: names that requests may give.
        max_positions: of prompt and answer together.
        default_max_tokens: of an answer, where a request does not say.
        created: when the server was started, seconds since 1970.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def models(self) -> Sequence[str]: ...
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
    """An answer in an API's form: as a stream, or as a whole at its end. Both take every update of the request."""

    def begin(self) -> list[Event]:
        """Before the first update."""
        ...

    def update(self, update: Update) -> list[Event]: ...

    def end(self) -> list[Event]:
        """Behind the last update."""
        ...

    def whole(self) -> dict[str, Any]:
        """The answer, when all updates have been taken."""
        ...
