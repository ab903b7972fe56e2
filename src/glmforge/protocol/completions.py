"""OpenAI's completions: a text, or token ids, goes on. `max_tokens: 0` with `echo` and `logprobs` scores a prompt."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from glmforge.errors import GlmforgeError
from glmforge.files import why_no_text
from glmforge.generate.answer import Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.protocol.chat import error, finish_reason, json_schema, usage_of
from glmforge.protocol.fields import Sampling, check_model, read_body, sampling_params, token_text
from glmforge.protocol.request import ApiError, Ask, Context, Event

__all__ = ["CompletionWriter", "error", "parse"]

MAX_CHOICES = 128
_MAX_PROMPT = 2**24


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(Sampling):
    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    best_of: int | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: _StreamOptions | None = None
    response_format: dict[str, Any] | None = None


def parse(body: object, context: Context) -> Ask:
    """Raises `ApiError`."""
    read = read_body(_Body, body)
    check_model(read.model, context)
    if read.suffix:
        raise ApiError("invalid_request", "suffix: is not supported; leave it out", "suffix")
    if read.best_of not in (None, read.n):
        raise ApiError("invalid_request", "best_of: is not supported; use n", "best_of")
    prompt = _ids(read.prompt, context)
    wants_prompt = read.echo and read.logprobs is not None
    if read.max_tokens == 0 and not read.echo:
        raise ApiError("invalid_request", "max_tokens: 0 needs echo: true, or nothing would be answered", "max_tokens")
    params = sampling_params(
        prompt,
        read.max_tokens,
        read,
        context,
        num_samples=read.n,
        logprobs=read.logprobs,
        prompt_logprobs=wants_prompt,
        json_schema=json_schema(read.response_format, "response_format"),
    )
    return Ask(
        prompt=prompt,
        params=params,
        model=read.model,
        stream=read.stream,
        echo=read.echo,
        include_usage=read.stream_options is not None and read.stream_options.include_usage,
        priority=read.priority or 0,
        timeout=read.timeout,
        id=read.request_id,
    )


def _ids(prompt: str | list[int] | list[str] | list[list[int]], context: Context) -> tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list):
        if not all(isinstance(token, int) for token in prompt):
            raise ApiError("invalid_request", "prompt: several prompts in one request are not supported", "prompt")
        ids = prompt
    else:
        if (reason := why_no_text(prompt)) is not None or len(prompt) > _MAX_PROMPT:
            raise ApiError("invalid_request", f"prompt: {reason or 'is too long'}", "prompt")
        try:
            ids = context.tokenizer.encode(prompt) or [context.tokenizer.end_of_text_id]
        except GlmforgeError as failure:
            raise ApiError("invalid_request", f"prompt: {failure}", "prompt") from None
    size = context.tokenizer.vocab_size
    if not ids or not all(isinstance(token, int) and 0 <= token < size for token in ids):
        raise ApiError("invalid_request", f"prompt: must be text, or token ids below {size:,}", "prompt")
    return tuple(token for token in ids if isinstance(token, int))


class CompletionWriter:
    """Answers as text completions, or chunks of them."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        self._ask, self._context, self._id = ask, context, answer_id
        number = ask.params.num_samples
        echoed = context.tokenizer.decode(ask.prompt) if ask.echo else ""
        self._texts, self._sent = [echoed] * number, [False] * number
        self._tokens: list[list[tuple[int, TokenLogprob | None]]] = [[] for _ in range(number)]
        self._ends: list[tuple[str, int | str | None]] = [("stop", None)] * number
        self._prompt: list[tuple[int, TokenLogprob | None]] = []
        self._num_tokens = self._num_cached = 0

    def begin(self) -> list[Event]:
        return []

    def update(self, update: Update) -> list[Event]:
        number, told = update.sample, []
        self._texts[number] += update.text
        self._num_cached = update.num_cached
        if update.token is not None:
            self._num_tokens += 1
            if update.logprob is not None:
                told = [(update.token, update.logprob)]
                self._tokens[number] += told
        if update.details is not None and update.details.prompt_logprobs:
            known = [None, *update.details.prompt_logprobs]
            self._prompt = list(zip(self._ask.prompt, known, strict=True))
        text = update.text
        if not self._sent[number]:
            self._sent[number], text = True, self._texts[number]
        finish = None
        if update.finished is not None:
            finish = finish_reason(update, 0)
            self._ends[number] = finish, update.stop
        if not (text or told or finish):
            return []
        logprobs = self._logprobs(told, len(self._texts[number]) - len(update.text))
        return [self._event(self._choice(number, text, logprobs, finish, update.stop))]

    def end(self) -> list[Event]:
        if not self._ask.include_usage:
            return []
        return [Event(None, self._head() | {"choices": [], "usage": self.usage()})]

    def whole(self) -> dict[str, Any]:
        choices = []
        for number, text in enumerate(self._texts):
            tokens = [*self._prompt, *self._tokens[number]]
            choices.append(self._choice(number, text, self._logprobs(tokens, 0), *self._ends[number]))
        return self._head() | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        return usage_of(self._ask, self._num_tokens, self._num_cached)

    def _logprobs(self, tokens: list[tuple[int, TokenLogprob | None]], offset: int) -> dict[str, Any] | None:
        """In OpenAI's form, of tokens whose text begins at `offset`."""
        if self._ask.params.logprobs is None:
            return None
        texts = [token_text(self._context, token) for token, _ in tokens]
        offsets, place = [], offset
        for text in texts:
            offsets.append(place)
            place += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [None if one is None else one.logprob for _, one in tokens],
            "top_logprobs": [
                None if one is None else {token_text(self._context, other): logprob for other, logprob in one.top}
                for _, one in tokens
            ],
            "text_offset": offsets,
        }

    def _choice(
        self, number: int, text: str, logprobs: dict[str, Any] | None, finish: str | None, stop: int | str | None
    ) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": stop}

    def _event(self, choice: dict[str, Any]) -> Event:
        usage = {"usage": None} if self._ask.include_usage else {}
        return Event(None, self._head() | {"choices": [choice], **usage})

    def _head(self) -> dict[str, Any]:
        created = self._context.created
        return {"id": self._id, "object": "text_completion", "created": created, "model": self._ask.model}
