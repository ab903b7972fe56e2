"""Tokens in and out, for reinforcement learning; encoding as a service.

`/generate` takes token ids and gives the tokens that were sampled, with their log-probabilities under the temperature
and nothing else, and if asked the prompt's and the experts that each token chose: nothing is encoded again on the way.

    {"prompt_token_ids": [1, 2], "max_tokens": 8, "n": 4, "logprobs": 0, "prompt_logprobs": true, "experts": true}
    {"choices": [{"index": 0, "tokens": [...], "logprobs": [...], "finish_reason": "stop", "stop_reason": 151336}], ...}

Experts are int lists [tokens of prompt and answer but the last][MoE layers][experts of a token].
"""

from collections.abc import Mapping
from typing import Any

from glmforge.generate.answer import Update
from glmforge.generate.params import MAX_SAMPLES, MAX_TOP_LOGPROBS, SamplingParams
from glmforge.protocol.chat import read_talk
from glmforge.protocol.completions import token_ids
from glmforge.protocol.openai import Counts, common, error, finite, refuse_failed, sampling
from glmforge.protocol.prompt import rendered
from glmforge.protocol.request import Ask, Context, Event, Fields, invalid, refusing, room_for

__all__ = ["TokensWriter", "detokenize", "error", "parse", "tokenize"]


def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Of `/generate`. Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        prompt = token_ids(fields.array("prompt_token_ids"), "prompt_token_ids", context.tokenizer)
        settings = sampling(fields, context, max_choices=MAX_SAMPLES)
        max_tokens = fields.integer("max_tokens", 0)
        if max_tokens == 0 and settings["num_samples"] > 1:
            raise invalid("max_tokens", "0 scores the prompt alone; leave out n")
        room = room_for(prompt, max_tokens, context, least=0 if max_tokens == 0 else 1)
        settings["min_new_tokens"] = min(settings["min_new_tokens"], room)
        logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
        params = SamplingParams(
            **settings,
            max_new_tokens=room,
            logprobs=0 if logprobs is None else logprobs,
            prompt_logprobs=fields.flag("prompt_logprobs"),
            experts=fields.flag("experts"),
        )
        return Ask(prompt, params, max_tokens_zero=max_tokens == 0, **common(fields, context))


def tokenize(body: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Ids of a text (`prompt`), or of a conversation as chat has it. Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        if ("prompt" in fields) == ("messages" in fields):
            raise invalid("prompt", "give either prompt or messages")
        if "messages" in fields:
            talk = read_talk(fields)
            ids = rendered(talk, context, thinking=talk.thinking.enabled)
        else:
            ids = context.tokenizer.encode(fields.text("prompt"))
        found: dict[str, Any] = {"count": len(ids), "max_model_len": context.max_positions, "tokens": ids}
        if fields.flag("return_token_strs"):
            found["token_strs"] = [context.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
        return found


def detokenize(body: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """The text of ids (`tokens`). Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        ids = fields.array("tokens")
        if "tokens" not in fields:
            raise invalid("tokens", "is required")
        return {"prompt": context.tokenizer.decode(token_ids(ids, "tokens", context.tokenizer)) if ids else ""}


class TokensWriter:
    """Answers as token ids."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        self._ask, self._counts = ask, Counts(ask)
        self._head = {"id": answer_id, "object": "tokens", "created": context.created, "model": ask.model}
        self._choices = [self._empty(number) for number in range(ask.params.num_samples)]

    def begin(self) -> list[Event]:
        """Nothing."""
        return []

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        refuse_failed(update)
        self._counts.add(update)
        told = self._empty(update.sample) if self._ask.stream else self._choices[update.sample]
        if update.token is not None and not self._ask.max_tokens_zero:
            told["tokens"].append(update.token)
            if (found := update.logprob) is not None:
                told["logprobs"].append(finite(found.logprob))
                if self._ask.params.logprobs:
                    told["top_logprobs"].append([[token, finite(logprob)] for token, logprob in found.top])
        if update.finished is not None:
            told |= {"finish_reason": update.finished, "stop_reason": update.stop} | self._details(update)
        return [Event(None, self._head | {"choices": [told]})] if self._ask.stream else []

    def end(self) -> list[Event]:
        """Usage."""
        return [Event(None, self._head | {"choices": [], "usage": self._counts.body()})]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return self._head | {"choices": self._choices, "usage": self._counts.body()}

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
