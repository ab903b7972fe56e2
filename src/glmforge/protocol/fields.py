"""Fields that several APIs share: settings of sampling, and how long an answer may be.

Bodies are read by pydantic models, which ignore fields that they do not know, as the APIs' own servers do. What would
change an answer and is not done here is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmforge.data.chat.conversation import Conversation
from glmforge.errors import GlmforgeError
from glmforge.files import shown
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.protocol.request import ApiError, Context

Body = TypeVar("Body", bound=BaseModel)
_MAX_ID = 200
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Sampling(BaseModel):
    """Of all APIs: OpenAI's fields, and those that vLLM and SGLang have beside them."""

    model_config = ConfigDict(strict=True)

    model: str
    stream: bool = False
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: int | None = None
    min_p: Finite | None = None
    repetition_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    presence_penalty: Finite | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    logit_bias: dict[str, Finite] | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    priority: int | None = None
    timeout: Annotated[Finite, Field(gt=0)] | None = None
    request_id: Annotated[str, Field(max_length=_MAX_ID)] | None = None

    def settings(self) -> dict[str, Any]:
        """Arguments of `SamplingParams` but for lengths."""
        given = {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),  # -1 keeps all tokens elsewhere
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "seed": None if self.seed is None else self.seed % 2**63,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "stop_ids": self.stop_token_ids,
            "logit_bias": None if self.logit_bias is None else _token_biases(self.logit_bias),
        }
        return {name: value for name, value in given.items() if value is not None}


def read_body(kind: type[Body], body: object) -> Body:
    """Raises `ApiError` that names the field at fault."""
    if not isinstance(body, Mapping):
        raise ApiError("invalid_request", "the body is not a JSON object")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "dict[")))
        raise ApiError("invalid_request", shown(f"{place}: {first['msg']}"), shown(place) or None) from None
    except RecursionError:
        raise ApiError("invalid_request", "the body is nested too deeply") from None


def check_model(model: str, context: Context) -> None:
    """Raises `ApiError` for a model that is not served."""
    if model not in context.models:
        known = ", ".join(context.models)
        raise ApiError("not_found", f"model: '{shown(model[:200])}' is not served here; served: {known}", "model")


def sampling_params(
    prompt: Sequence[int],
    wanted: int | None,
    body: Sampling,
    context: Context,
    *,
    field: str = "max_tokens",
    **more: Any,
) -> SamplingParams:
    """With a length that fits behind the prompt.

    Args:
        wanted: tokens of the answer; None for the server's default.
        field: what the API calls that.

    Raises:
        ApiError: a setting that cannot be, or more tokens than the model has positions.
    """
    room = context.max_positions - len(prompt)
    if room < 1 or (wanted or 0) > room:
        raise ApiError(
            "invalid_request",
            f"{field}: the prompt has {len(prompt):,} tokens, and {max(wanted or 0, 1):,} for the answer make more "
            f"than the {context.max_positions:,} of the model's context; shorten one of them",
            field,
        )
    longest = min(context.default_max_tokens, room) if wanted is None else wanted
    shortest = longest if body.ignore_eos else min(body.min_tokens or 0, longest)
    try:
        return SamplingParams(max_new_tokens=longest, min_new_tokens=shortest, **body.settings(), **more)
    except (RequestError, TypeError, OverflowError) as error:
        message = str(error)
        raise ApiError("invalid_request", message, message.partition(":")[0].split(" ")[0]) from None


def rendered(messages: object, tools: object, context: Context, *, thinking: bool) -> tuple[int, ...]:
    """Ids of a conversation up to where the reply begins. Raises `ApiError`."""
    try:
        conversation = Conversation.from_messages(messages, tools, is_prompt=True)
        return tuple(
            context.tokenizer.apply_chat_template(
                conversation.messages, conversation.tools, add_generation_prompt=True, thinking=thinking
            )
        )
    except GlmforgeError as error:
        raise ApiError("invalid_request", f"messages: {error}", "messages") from None
    except RecursionError:
        raise ApiError("invalid_request", "messages: nested too deeply", "messages") from None


def token_text(context: Context, token: int) -> str:
    """What a token adds to a text, as far as it is a text by itself."""
    return context.tokenizer.token_bytes(token).decode(errors="replace")


def _token_biases(given: Mapping[str, float]) -> dict[int, float]:
    biases = {}
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise ApiError("invalid_request", f"logit_bias: '{shown(token[:50])}' is not a token id", "logit_bias")
        biases[int(token)] = bias
    return biases
