"""Tokens in and out, for reinforcement learning; encoding as a service.

`/generate` takes token ids and gives the tokens that were sampled, with their log-probabilities under the temperature
and nothing else, and if asked the prompt's and the experts that each token chose: nothing is encoded again on the way.

    {"prompt_token_ids": [1, 2], "max_tokens": 8, "n": 4, "logprobs": 0, "prompt_logprobs": true, "experts": true}
    {"choices": [{"index": 0, "tokens": [...], "logprobs": [...], "finish_reason": "stop", "stop_reason": 151336}], ...}

Experts are int lists [tokens of prompt and answer but the last][MoE layers][experts of a token]. A server that is sent
weights adds `versions`, the number of the weights that each token was sampled with.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from glmforge.generate.answer import Update
from glmforge.generate.params import MAX_SAMPLES, MAX_TOP_LOGPROBS, SamplingParams
from glmforge.protocol.body import Asked, Body, Count, Ids, Whole, refusing, room_for, token_ids
from glmforge.protocol.chat import TalkBody
from glmforge.protocol.openai import ChoicesWriter, finite
from glmforge.protocol.prompt import rendered
from glmforge.protocol.request import Ask, Context, Event, invalid


class _Body(Asked):
    prompt_token_ids: Ids
    n: Annotated[Whole, Field(ge=1, le=MAX_SAMPLES)] = 1
    max_tokens: Count | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    prompt_logprobs: bool = False
    experts: bool = False


@refusing()
def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Of `/generate`. Raises `ApiError`."""
    given = _Body.model_validate(body)
    prompt = token_ids(given.prompt_token_ids, "prompt_token_ids", context.tokenizer)
    scores_only = given.max_tokens == 0
    if scores_only and given.n > 1:
        raise invalid("max_tokens", "0 scores the prompt alone; leave out n")
    room = room_for(prompt, given.max_tokens, context, least=0 if scores_only else 1)
    params = SamplingParams(
        **given.sampling(context) | {"min_new_tokens": min(given.min_tokens, room)},
        max_new_tokens=room,
        logprobs=given.logprobs,
        prompt_logprobs=given.prompt_logprobs,
        experts=given.experts,
    )
    return Ask(prompt, params, max_tokens_zero=scores_only, **given.shared(context))


class _Encoding(Body):
    prompt: str | None = None
    messages: Any = None
    return_token_strs: bool = False


class _Decoding(Body):
    tokens: Ids


@refusing()
def tokenize(body: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Ids of a text (`prompt`), or of a conversation as chat has it. Raises `ApiError`."""
    given = _Encoding.model_validate(body)
    if (given.prompt is None) == (given.messages is None):
        raise invalid("prompt", "give either prompt or messages")
    if given.prompt is not None:
        ids = context.tokenizer.encode(given.prompt)
    else:
        talk = TalkBody.model_validate(body).talk()
        ids = rendered(talk, context, thinking=talk.thinking.enabled)
    found: dict[str, Any] = {"count": len(ids), "max_model_len": context.max_positions, "tokens": ids}
    if given.return_token_strs:
        found["token_strs"] = [context.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
    return found


@refusing()
def detokenize(body: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """The text of ids (`tokens`). Raises `ApiError`."""
    ids = _Decoding.model_validate(body).tokens
    return {"prompt": context.tokenizer.decode(token_ids(ids, "tokens", context.tokenizer)) if ids else ""}


class TokensWriter(ChoicesWriter):
    """Answers as token ids."""

    kind = chunk_kind = "tokens"

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        super().__init__(ask, context, answer_id)
        self._choices = [self._empty(number) for number in range(ask.params.num_samples)]

    def begin(self) -> list[Event]:
        """Nothing."""
        return []

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        self._counts.add(update)
        told = self._empty(update.sample) if self._ask.stream else self._choices[update.sample]
        if update.token is not None and not self._ask.max_tokens_zero:
            told["tokens"].append(update.token)
            if update.version is not None:
                told.setdefault("versions", []).append(update.version)
            if (found := update.logprob) is not None:
                told["logprobs"].append(finite(found.logprob))
                if self._ask.params.logprobs:
                    told["top_logprobs"].append([[token, finite(logprob)] for token, logprob in found.top])
        if update.finished is not None:
            told |= {"finish_reason": update.finished, "stop_reason": update.stop} | self._details(update)
        return [self._chunk([told])] if self._ask.stream else []

    def end(self) -> list[Event]:
        """Usage."""
        return [Event(None, self._answer([]))]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return self._answer(self._choices)

    def _empty(self, number: int) -> dict[str, Any]:
        top: dict[str, list[Any]] = {"top_logprobs": []} if self._ask.params.logprobs else {}
        return {"index": number, "tokens": [], "logprobs": [], **top, "finish_reason": None}

    def _details(self, update: Update) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if update.details is not None and self._ask.params.prompt_logprobs:
            found["prompt_logprobs"] = [None, *(finite(one.logprob) for one in update.details.prompt_logprobs)]
        if update.details is not None and update.details.experts_TMK is not None:
            found["experts"] = update.details.experts_TMK.tolist()
        return found
