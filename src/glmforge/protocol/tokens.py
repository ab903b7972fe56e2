"""Tokens in and out: what reinforcement learning asks a server for, and encoding as a service.

`/generate` takes token ids and gives the tokens that were sampled with their log-probabilities, under the temperature
and nothing else; nothing is encoded again on the way. `/tokenize` also renders conversations.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from glmforge.errors import GlmforgeError
from glmforge.files import why_no_text
from glmforge.generate.answer import Update
from glmforge.protocol.chat import error
from glmforge.protocol.fields import Sampling, check_model, read_body, rendered, sampling_params, token_text
from glmforge.protocol.request import ApiError, Ask, Context, Event

__all__ = ["TokensWriter", "detokenize", "error", "parse", "tokenize"]

_MAX_TEXT = 2**24


class _Body(Sampling):
    prompt_token_ids: list[int]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=4096)] = 1
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = 0
    prompt_logprobs: bool = False
    experts: bool = False


class _Text(BaseModel):
    model_config = ConfigDict(strict=True)
    prompt: Annotated[str, Field(max_length=_MAX_TEXT)] | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    enable_thinking: bool = True
    return_token_strs: bool = False


class _Ids(BaseModel):
    model_config = ConfigDict(strict=True)
    tokens: list[int]


def parse(body: object, context: Context) -> Ask:
    """Raises `ApiError`."""
    read = read_body(_Body, body)
    check_model(read.model, context)
    size = context.tokenizer.vocab_size
    if not read.prompt_token_ids or not all(0 <= token < size for token in read.prompt_token_ids):
        raise ApiError("invalid_request", f"prompt_token_ids: must be ids below {size:,}", "prompt_token_ids")
    params = sampling_params(
        read.prompt_token_ids,
        read.max_tokens,
        read,
        context,
        num_samples=read.n,
        logprobs=read.logprobs,
        prompt_logprobs=read.prompt_logprobs,
        experts=read.experts,
    )
    return Ask(
        prompt=tuple(read.prompt_token_ids),
        params=params,
        model=read.model,
        stream=read.stream,
        priority=read.priority or 0,
        timeout=read.timeout,
        id=read.request_id,
    )


def tokenize(body: object, context: Context) -> dict[str, Any]:
    """Ids of a text or of a conversation. Raises `ApiError`."""
    read = read_body(_Text, body)
    if (read.prompt is None) == (read.messages is None):
        raise ApiError("invalid_request", "prompt: pass either prompt or messages", "prompt")
    if read.prompt is None:
        ids = list(rendered(read.messages, read.tools, context, thinking=read.enable_thinking))
    elif (reason := why_no_text(read.prompt)) is not None:
        raise ApiError("invalid_request", f"prompt: {reason}", "prompt")
    else:
        ids = context.tokenizer.encode(read.prompt)
    found: dict[str, Any] = {"count": len(ids), "max_model_len": context.max_positions, "tokens": ids}
    return found | ({"token_strs": [token_text(context, token) for token in ids]} if read.return_token_strs else {})


def detokenize(body: object, context: Context) -> dict[str, Any]:
    """The text of ids. Raises `ApiError`."""
    ids = read_body(_Ids, body).tokens
    if not all(0 <= token < context.tokenizer.vocab_size for token in ids):
        raise ApiError("invalid_request", f"tokens: must be ids below {context.tokenizer.vocab_size:,}", "tokens")
    try:
        return {"prompt": context.tokenizer.decode(ids)}
    except GlmforgeError as failure:
        raise ApiError("invalid_request", f"tokens: {failure}", "tokens") from None


class TokensWriter:
    """Answers as token ids."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        self._ask, self._id = ask, answer_id
        self._choices: list[dict[str, Any]] = [
            {"index": number, "tokens": [], "logprobs": [], "finish_reason": None} for number in range(self._number)
        ]
        self._num_cached = 0

    @property
    def _number(self) -> int:
        return self._ask.params.num_samples

    def begin(self) -> list[Event]:
        return []

    def update(self, update: Update) -> list[Event]:
        choice, told = self._choices[update.sample], {"index": update.sample, "tokens": [], "logprobs": []}
        self._num_cached = update.num_cached
        if update.token is not None:
            told["tokens"] = [update.token]
            told["logprobs"] = [] if update.logprob is None else [update.logprob.logprob]
        for name in ("tokens", "logprobs"):
            choice[name] += told[name]
        if update.finished is not None:
            ends = {"finish_reason": update.finished, "stop_reason": update.stop} | self._details(update)
            choice |= ends
            told |= ends
        return [Event(None, {"id": self._id, "choices": [told]})] if told["tokens"] or update.finished else []

    def end(self) -> list[Event]:
        return []

    def whole(self) -> dict[str, Any]:
        usage = {"prompt_tokens": len(self._ask.prompt), "cached_tokens": self._num_cached}
        return {"id": self._id, "model": self._ask.model, "choices": self._choices, "usage": usage}

    def _details(self, update: Update) -> dict[str, Any]:
        """Experts are a list for each token and layer, in the order of the router."""
        details = update.details
        if details is None:
            return {}
        found: dict[str, Any] = {}
        if self._ask.params.prompt_logprobs:
            found["prompt_logprobs"] = [None, *(one.logprob for one in details.prompt_logprobs)]
        if details.experts_TMK is not None:
            found["experts"] = details.experts_TMK.tolist()
        return found
