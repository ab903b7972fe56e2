"""Bodies of requests: bounded JSON, read into pydantic models of the fields that an API declares.

Types are strict, `null` counts as missing, unknown fields are ignored, as the APIs do it. What is wrong is refused by
the field's path, such as `messages[0].content`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import core_schema

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError, GlmforgeError
from glmforge.files import parse_json
from glmforge.protocol.request import ApiError, Context, invalid, quoted

_MAX = 2**31 - 1
_AS_GIVEN = ("min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "stop")


def read_body(data: bytes) -> dict[str, Any]:
    """The JSON object in a body, of bounded depth, size and numbers. Raises `ApiError`."""
    try:
        return parse_json(data.decode(), dict, source="the body", error=DataError)
    except (UnicodeDecodeError, DataError) as error:
        raise ApiError(400, "invalid_request", str(error)) from None


@contextmanager
def refusing(param: str | None = None) -> Iterator[None]:
    """Within, or in a function that it decorates, errors that the user can fix become refusals of the body."""
    try:
        yield
    except ApiError:
        raise
    except ValidationError as failure:
        raise _refusal(failure) from None
    except GlmforgeError as error:
        raise ApiError(400, "invalid_request", str(error), param) from None
    except RecursionError:
        raise invalid(param, "is nested too deeply") from None


def _refusal(failure: ValidationError) -> ApiError:
    errors = failure.errors(include_url=False)
    found = next((one for one in errors if one["loc"][-1:] == ("type",)), errors[0])  # which says what it is
    steps = [part for part in found["loc"] if not str(part).startswith("<")]  # `OneOf` names models like this
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in steps).removeprefix(".")
    if found["type"] == "unknown" and isinstance(found["input"], dict):
        name, choices = found["ctx"]["name"], found["ctx"]["choices"]
        kind = found["input"].get(name)
        problem = "is required" if kind is None else f"{quoted(kind)} is not supported; choose one of {choices}"
        return invalid(f"{path}.{name}", problem)
    if found["type"] in ("missing", "value_error"):
        return invalid(path, "is required" if found["type"] == "missing" else str(found["ctx"]["error"]))
    is_object = found["type"] in ("model_type", "dict_type", "unknown")
    expected = "expected an object" if is_object else found["msg"][:1].lower() + found["msg"][1:]
    return invalid(path or None, f"{expected}, not {quoted(found['input'])}")


class Body(BaseModel):
    """A body, or an object within."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if isinstance(given, dict) and None in given.values():
            return {name: value for name, value in given.items() if value is not None}
        return given


def refuse(why: str, *harmless: object) -> AfterValidator:
    """Of a field that would change the answer: refused, unless its value is harmless."""

    def check(value: object) -> object:
        if not any(value == one and type(value) is type(one) for one in harmless):
            raise ValueError(f"is not supported: {why}")
        return value

    return AfterValidator(check)


class OneOf:
    """An object whose field `name` says which of `models` it is."""

    def __init__(self, name: str, default: str | None = None, **models: type[Body]) -> None:
        self._name, self._default, self._models = name, default, models

    def __get_pydantic_core_schema__(self, _: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schemas = {f"<{kind}>": handler.generate_schema(model) for kind, model in self._models.items()}
        known: dict[str, str | int | float] = {"name": self._name, "choices": ", ".join(self._models)}
        return core_schema.tagged_union_schema(
            schemas, self._kind, custom_error_type="unknown", custom_error_message="-", custom_error_context=known
        )

    def _kind(self, given: object) -> str:
        kind = given.get(self._name) if isinstance(given, dict) else None
        return f"<{self._default if kind is None else kind}>"


def text_or(item: Any) -> PlainValidator:
    """Text, or a list of such items."""
    items: TypeAdapter[list[Any]] = TypeAdapter(Annotated[list[item], FailFast()])
    return PlainValidator(lambda given: given if isinstance(given, str) else items.validate_python(given))


def joined(part: Any, separator: str = "") -> BeforeValidator:
    """Text, or the texts of a list of such parts (`TextPart`)."""
    parts: TypeAdapter[list[TextPart]] = TypeAdapter(Annotated[list[part], FailFast()])

    def read(given: Any) -> Any:
        return separator.join(one.text for one in parts.validate_python(given)) if isinstance(given, list) else given

    return BeforeValidator(read)


class TextPart(Body):
    """Of a content that is a list. Images and their kind are refused: the model reads text only."""

    type: Literal["text"]
    text: str


def _whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=0, le=_MAX)]
Positive = Annotated[Whole, Field(ge=1, le=_MAX)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Ids = Annotated[list[int], FailFast()]
Strings = Annotated[list[str], FailFast(), BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class StreamOptions(Body):
    """Of a stream."""

    include_usage: bool = False


class Asked(Body):
    """What every API has. Beside the APIs' own fields: priority, timeout, request_id, and vLLM's for sampling."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    priority: Annotated[Whole, Field(ge=-(2**31), le=_MAX)] = 0
    timeout: Annotated[float, Field(ge=0.001, le=1e6)] | None = None
    request_id: str = ""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Share = 1.0
    top_k: Annotated[Whole, Field(ge=-1, le=_MAX)] = 0
    min_p: Share = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = {}
    seed: Annotated[Whole, Field(ge=-(2**63), le=2**64)] | None = None
    n: Annotated[Whole, Field(ge=1, le=128)] = 1
    stop: Strings = []
    min_tokens: Count = 0
    stop_token_ids: Ids = []
    ignore_eos: bool = False

    def shared(self, context: Context) -> dict[str, Any]:
        """Fields of `Ask`. Raises `ApiError` 404 for a model that is not served."""
        names = context.model_names
        name = names[0] if self.model is None else self.model
        if name not in names:
            problem = f"model: {quoted(name)} does not exist; choose one of {', '.join(names)}"
            raise ApiError(404, "not_found", problem, "model", "model_not_found")
        return {
            "model": name,
            "stream": self.stream,
            "include_usage": self.stream_options.include_usage,
            "priority": self.priority,
            "timeout": self.timeout,
            "id": self.request_id or None,
        }

    def sampling(self, context: Context) -> dict[str, Any]:
        """Settings of `SamplingParams` but for lengths, log-probabilities and schemas."""
        tokenizer = context.tokenizer
        for name in self.logit_bias:
            if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < tokenizer.vocab_size):
                raise invalid("logit_bias", f"{quoted(name)} is not a token id of this model")
        own = token_ids(self.stop_token_ids, "stop_token_ids", tokenizer) if self.stop_token_ids else ()
        return {name: getattr(self, name) for name in _AS_GIVEN} | {
            "temperature": self.temperature if self.temperature >= 1e-4 else 0.0,
            "top_p": max(self.top_p, 1e-9),  # 0 leaves the likeliest token
            "top_k": max(0, self.top_k),
            "logit_bias": {int(name): bias for name, bias in self.logit_bias.items()},
            "seed": None if self.seed is None else self.seed % 2**63,
            "num_samples": self.n,
            "min_new_tokens": self.min_tokens,
            "stop_ids": (*tokenizer.stop_ids, *own) if own and not self.ignore_eos else (),
            "banned_tokens": tokenizer.stop_ids if self.ignore_eos else (),
        }


def token_ids(ids: Sequence[Any], where: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Checked. Raises `ApiError`."""
    size = tokenizer.vocab_size
    for token in ids:
        if type(token) is not int or not 0 <= token < size:
            raise invalid(where, f"{quoted(token)} is not a token id of this model, 0 to {size - 1:,}")
    if not ids:
        raise invalid(where, "is empty")
    return tuple(ids)


def room_for(prompt: Sequence[int], asked: int | None, context: Context, *, least: int = 1) -> int:
    """Tokens that an answer may have: as asked, at most what the context leaves. Raises `ApiError` for a prompt that
    leaves less than `least`."""
    room = context.max_positions - len(prompt)
    if room < least:
        problem = f"the prompt has {len(prompt):,} tokens, the model's context {context.max_positions:,}"
        raise invalid(None, f"{problem}; shorten the prompt", "context_length_exceeded")
    return min(context.default_max_tokens if asked is None else asked, room)
