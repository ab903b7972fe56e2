"""OpenAI's completions: a text, or token ids, goes on. https://platform.openai.com/docs/api-reference/completions

`max_tokens: 0` with `echo` and `logprobs` scores a prompt. The likeliest tokens of a place are a mapping by their text,
which tokens that are parts of one character share; `/generate` tells ids.
"""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import SamplingParams
from glmforge.protocol.openai import (
    NOT_ENDED,
    Counts,
    common,
    error,
    finite,
    num_choices,
    refuse_failed,
    sampling,
    schema_of,
    stop_reason,
)
from glmforge.protocol.request import Ask, Context, Event, Fields, invalid, quoted, refusing, room_for

__all__ = ["CompletionWriter", "error", "parse", "token_ids"]

MAX_PROMPTS = 128
_DEFAULT_TOKENS = 16
_MAX_TOP = 20
_Scored = tuple[int, TokenLogprob | None]


def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    with refusing():
        fields = Fields.of_body(body)
        shared = common(fields, context)
        fields.refuse("suffix", "the model has not learnt to fill in", [""])
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"):
            fields.refuse(name, "use response_format")
        settings = sampling(fields, context)
        fields.refuse("best_of", "use n", [settings["num_samples"]])
        prompts = _prompts(fields, context.tokenizer)
        echo, logprobs = fields.flag("echo"), fields.integer("logprobs", 0, _MAX_TOP)
        max_tokens = fields.integer("max_tokens", 0)
        scores = echo and logprobs is not None
        if max_tokens == 0 and (not echo or settings["num_samples"] > 1):
            raise invalid("max_tokens", "0 needs echo: true and n: 1, or there is nothing to answer")
        if scores and shared["stream"]:
            raise invalid("logprobs", "those of the prompt (echo) cannot be streamed; set stream to false")
        wanted = _DEFAULT_TOKENS if max_tokens is None else max_tokens
        room = min(room_for(prompt, wanted, context, least=min(1, wanted)) for prompt in prompts)
        settings["min_new_tokens"] = min(settings["min_new_tokens"], room)
        params = SamplingParams(
            **settings,
            max_new_tokens=room,
            logprobs=logprobs,
            prompt_logprobs=scores,
            json_schema=schema_of(fields, "response_format"),
        )
        return Ask(
            prompts[0],
            params,
            prompts=tuple(prompts) if len(prompts) > 1 else (),
            echo=echo,
            max_tokens_zero=max_tokens == 0,
            **shared,
        )


def token_ids(ids: Sequence[Any], where: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Checked. Raises `ApiError`."""
    size = tokenizer.vocab_size
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            raise invalid(where, f"{quoted(token)} is not a token id of this model, 0 to {size - 1:,}")
    if not ids:
        raise invalid(where, "is empty")
    return tuple(ids)


def _prompts(fields: Fields, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Of the four forms that a prompt may have."""
    given = fields.get("prompt")
    if isinstance(given, str):
        given = [given]
    elif given is None:
        raise invalid("prompt", "is required")
    items = fields.array("prompt") if isinstance(given, Mapping | int | float) else given
    if items and isinstance(items[0], int):
        return [token_ids(items, "prompt", tokenizer)]
    if not items or len(items) > MAX_PROMPTS:
        raise invalid("prompt", f"give 1 to {MAX_PROMPTS} prompts, not {len(items):,}")
    found = []
    for number, item in enumerate(items):
        if isinstance(item, str):
            found.append(tuple(tokenizer.encode(item) or [tokenizer.end_of_text_id]))
        elif isinstance(item, list | tuple):
            found.append(token_ids(item, f"prompt[{number}]", tokenizer))
        else:
            raise invalid(f"prompt[{number}]", f"expected text or token ids, not {quoted(item)}")
    return found


class _Choice:
    """An answer and where in it the next token's text begins."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer, self._prompt = tokenizer, prompt
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self.text = tokenizer.decode(prompt)
        self.tokens: list[_Scored] = []
        self.scores: list[_Scored] = []
        self.ends: dict[str, Any] = NOT_ENDED

    def skip_prompt(self) -> None:
        self.text = ""

    def logprobs(self, scored: Sequence[_Scored]) -> dict[str, Any]:
        """Of tokens that follow those told of before."""
        told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, found in scored:
            text, data = self._text(token), self._tokenizer.token_bytes(token)
            told["tokens"].append(text)
            told["token_logprobs"].append(None if found is None else finite(found.logprob))
            top = None if found is None else {self._text(one): finite(logprob) for one, logprob in reversed(found.top)}
            told["top_logprobs"].append(top if found is None or top is None else {text: finite(found.logprob)} | top)
            told["text_offset"].append(self._offset)
            self._offset += len(self._characters.decode(data))
        return told

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


class CompletionWriter:
    """Answers as text completions, or chunks of them."""

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        self._ask, self._tokenizer, self._counts = ask, context.tokenizer, Counts(ask)
        self._head = {"id": answer_id, "object": "text_completion", "created": context.created, "model": ask.model}
        self._prompts = ask.prompts or (ask.prompt,)
        self._choices = [
            _Choice(self._tokenizer, self._prompt_of(sample) if ask.echo else ()) for sample in range(num_choices(ask))
        ]

    def begin(self) -> list[Event]:
        """The prompts, if they are to be echoed."""
        if not (self._ask.echo and self._ask.stream):
            return []
        return [self._event(number, one.text, None, NOT_ENDED) for number, one in enumerate(self._choices)]

    def update(self, update: Update) -> list[Event]:
        """What has become known. Raises `ApiError` for an answer that has failed."""
        refuse_failed(update)
        choice = self._choices[update.sample]
        self._counts.add(update)
        fresh: list[_Scored] = []
        if not self._ask.max_tokens_zero:
            if update.token is not None and update.logprob is not None and update.token not in self._tokenizer.stop_ids:
                fresh = [(update.token, update.logprob)]
            if not self._ask.stream:
                choice.text += update.text
                choice.tokens += fresh
        if update.details is not None and self._ask.params.prompt_logprobs:
            known = [None, *update.details.prompt_logprobs]
            choice.scores = list(zip(self._prompt_of(update.sample), known, strict=False))
        if update.finished is not None:
            finish = "stop" if update.finished == "stop" else "length"
            choice.ends = {"finish_reason": finish, "stop_reason": stop_reason(update, self._tokenizer)}
        if not self._ask.stream or not (update.text or fresh or update.finished):
            return []
        logprobs = None if self._ask.params.logprobs is None else choice.logprobs(fresh)
        return [self._event(update.sample, update.text, logprobs, choice.ends)]

    def end(self) -> list[Event]:
        """Usage, if it is asked for."""
        if not self._ask.include_usage:
            return []
        return [Event(None, self._head | {"choices": [], "usage": self._counts.body()})]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = []
        for number, one in enumerate(self._choices):
            logprobs = None if self._ask.params.logprobs is None else one.logprobs([*one.scores, *one.tokens])
            choices.append({"index": number, "text": one.text, "logprobs": logprobs, **one.ends})
        return self._head | {"choices": choices, "usage": self._counts.body()}

    def _prompt_of(self, sample: int) -> tuple[int, ...]:
        return self._prompts[sample // self._ask.params.num_samples]

    def _event(self, number: int, text: str, logprobs: dict[str, Any] | None, ends: Mapping[str, Any]) -> Event:
        choice = {"index": number, "text": text, "logprobs": logprobs, **ends}
        usage = {"usage": None} if self._ask.include_usage else {}
        return Event(None, self._head | {"choices": [choice]} | usage)
