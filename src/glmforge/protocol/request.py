"""What any API asks for, as one thing: `Ask`. What it refuses, as one thing: `ApiError`.

Each API's module parses a body into an `Ask` and writes answers in that API's form. Nothing here knows a web
framework. A module of an API offers:

    parse(body, context) -> Ask
    a Writer(ask, context, answer_id)
    error(ApiError) -> body
"""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.files import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, shown, why_no_text
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
        extra: what only the API's own writer understands.
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
    """An answer in an API's form: as a stream, or whole at its end. Either takes every update of the request."""

    def begin(self) -> list[Event]:
        """Before the first update."""
        ...

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        ...

    def end(self) -> list[Event]:
        """Behind the last update."""
        ...

    def whole(self) -> dict[str, Any]:
        """The body, when all updates have been taken."""
        ...


@contextmanager
def refusing(param: str | None = None) -> Iterator[None]:
    """Within, errors that the user can fix become refusals of the body."""
    try:
        yield
    except ApiError:
        raise
    except GlmforgeError as error:
        raise ApiError(400, "invalid_request", str(error), param) from None
    except RecursionError:
        raise invalid(param, "is nested too deeply") from None


class Fields:
    """A body or a part of it, read field by field; whatever has the wrong type is refused by name.

    `null` counts as missing, as it does to the APIs.
    """

    def __init__(self, given: object, path: str = "") -> None:
        if not isinstance(given, Mapping):
            raise invalid(path or None, f"expected an object, not {quoted(given)}")
        self._given, self._path = given, path

    @classmethod
    def of_body(cls, body: object) -> "Fields":
        """Of a whole body: JSON of bounded depth, with text and numbers that can be used."""
        check_json(body)
        return cls(body)

    def __contains__(self, name: str) -> bool:
        return self._given.get(name) is not None

    def where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        return self._given.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """Raises `ApiError` where it is missing and has no default."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise invalid(self.where(name), "is required" if value is None else f"expected text, not {quoted(value)}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            raise invalid(self.where(name), f"unsupported value {quoted(value)}; choose one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(self.where(name), f"expected true or false, not {quoted(value)}")
        return value

    def integer(self, name: str, low: int, high: int = 2**31 - 1) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise invalid(
                self.where(name), f"expected a whole number between {low:,} and {high:,}, not {quoted(value)}"
            )
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise invalid(self.where(name), f"expected a number between {low:g} and {high:g}, not {quoted(value)}")
        return value

    def array(self, name: str, max_items: int = MAX_VALUES) -> list[Any]:
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise invalid(self.where(name), f"expected a list, not {quoted(value)}")
        if len(value) > max_items:
            raise invalid(self.where(name), f"has {len(value):,} items; at most {max_items:,} are allowed")
        return [*value]

    def part(self, name: str) -> "Fields | None":
        """An object within."""
        return Fields(self.get(name), self.where(name)) if name in self else None

    def parts(self, name: str, max_items: int = MAX_VALUES) -> "list[Fields]":
        """A list of objects within."""
        items = enumerate(self.array(name, max_items))
        return [Fields(item, f"{self.where(name)}[{number}]") for number, item in items]

    def refuse(self, name: str, why: str, harmless: Sequence[Any] = ()) -> None:
        """Refuse a field that would change the answer, unless its value is harmless."""
        value = self.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in harmless):
            raise invalid(self.where(name), f"is not supported: {why}")


def check_json(value: object) -> None:
    """Refuse what is not JSON, too deep or too large, and text and numbers that nothing can be done with."""
    level, num_values = [value], 0
    for _ in range(MAX_DEPTH + 1):
        num_values += len(level)
        if num_values > MAX_VALUES:
            raise invalid(None, f"the body has more than {MAX_VALUES:,} values")
        below: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                below += item.keys()
                below += item.values()
                if not all(isinstance(key, str) for key in item):
                    raise invalid(None, "the body is not JSON: a key is not text")
            elif isinstance(item, list | tuple):
                below += item
            else:
                _check_scalar(item)
        if not below:
            return
        level = below
    raise invalid(None, f"the body is nested more than {MAX_DEPTH} levels deep")


def _check_scalar(item: object) -> None:
    if isinstance(item, str):
        if (reason := why_no_text(item)) is not None:
            raise invalid(None, f"the body is not usable: {reason}")
    elif isinstance(item, float):
        if not math.isfinite(item):
            raise invalid(None, f"the body is not usable JSON: has the number {item}")
    elif isinstance(item, int):
        if abs(item) >= 10**MAX_DIGITS:
            raise invalid(None, f"the body has a number of more than {MAX_DIGITS} digits")
    elif item is not None:
        raise invalid(None, f"the body is not JSON: has a {type(item).__name__}")


def model_of(body: Fields, context: Context) -> str:
    """The model that a body names. Raises `ApiError` 404 for one that is not served."""
    name = body.text("model", context.model_names[0])
    if name not in context.model_names:
        known = ", ".join(context.model_names)
        raise ApiError(
            404, "not_found", f"model: {quoted(name)} does not exist; choose one of {known}", "model", "model_not_found"
        )
    return name


def room_for(prompt: Sequence[int], asked: int | None, context: Context, *, least: int = 1) -> int:
    """Tokens that an answer may have: as asked, at most what the context leaves. Raises `ApiError` for a prompt that
    leaves less than `least`."""
    room = context.max_positions - len(prompt)
    if room < least:
        raise invalid(
            None,
            f"the prompt has {len(prompt):,} tokens, the model's context {context.max_positions:,}; shorten the prompt",
            "context_length_exceeded",
        )
    return min(context.default_max_tokens if asked is None else asked, room)


def quoted(value: object) -> str:
    """As errors show a value: short, in one line."""
    try:
        return shown(_SHORT.repr(value)[:80])
    except (ValueError, RecursionError):
        return "a value that cannot be shown"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 78
