"""OpenAI's completions: a text, or token ids, goes on. https://platform.openai.com/docs/api-reference/completions

`max_tokens: 0` with `echo` and `logprobs` scores a prompt. The likeliest tokens of a place are a mapping by their text,
which tokens that are parts of one character share; `/generate` tells ids.
"""

import codecs
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import SamplingParams
from glmforge.protocol.body import Count, Whole, refuse, refusing, room_for, token_ids
from glmforge.protocol.openai import NOT_ENDED, ChoicesWriter, Guided, finite, num_choices
from glmforge.protocol.request import Ask, Context, Event, invalid, quoted

MAX_PROMPTS = 128
_MAX_TOP = 20
_Scored = tuple[int, TokenLogprob | None]


class _Body(Guided):
    prompt: Any
    max_tokens: Count = 16
    echo: bool = False
    logprobs: Annotated[Whole, Field(ge=0, le=_MAX_TOP)] | None = None
    suffix: Annotated[Any, refuse("the model has not learnt to fill in", "")] = None
    best_of: Any = None


@refusing()
def parse(body: Mapping[str, Any], context: Context) -> Ask:
    """Raises `ApiError`."""
    given = _Body.model_validate(body)
    shared, settings = given.shared(context), given.sampling(context)
    if given.best_of is not None and (type(given.best_of) is not int or given.best_of != given.n):
        raise invalid("best_of", "is not supported: use n")
    prompts = _prompts(given.prompt, context.tokenizer)
    scores = given.echo and given.logprobs is not None
    if given.max_tokens == 0 and (not given.echo or given.n > 1):
        raise invalid("max_tokens", "0 needs echo: true and n: 1, or there is nothing to answer")
    if scores and given.stream:
        raise invalid("logprobs", "those of the prompt (echo) cannot be streamed; set stream to false")
    room = min(room_for(prompt, given.max_tokens, context, least=min(1, given.max_tokens)) for prompt in prompts)
    params = SamplingParams(
        **settings | {"min_new_tokens": min(given.min_tokens, room)},
        max_new_tokens=room,
        logprobs=given.logprobs,
        prompt_logprobs=scores,
        json_schema=given.response_format.schema_for("response_format"),
    )
    several = tuple(prompts) if len(prompts) > 1 else ()
    return Ask(prompts[0], params, prompts=several, echo=given.echo, max_tokens_zero=given.max_tokens == 0, **shared)


def _prompts(given: Any, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Of the four forms that a prompt may have: a text, token ids, and lists of either."""
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise invalid("prompt", f"expected text, token ids or a list of them, not {quoted(given)}")
    if items and isinstance(items[0], int):
        return [token_ids(items, "prompt", tokenizer)]
    if not 1 <= len(items) <= MAX_PROMPTS:
        raise invalid("prompt", f"give 1 to {MAX_PROMPTS} prompts, not {len(items):,}")
    found = []
    for number, item in enumerate(items):
        if isinstance(item, str):
            found.append(tuple(tokenizer.encode(item) or [tokenizer.end_of_text_id]))
        elif isinstance(item, list):
            found.append(token_ids(item, f"prompt[{number}]", tokenizer))
        else:
            raise invalid(f"prompt[{number}]", f"expected text or token ids, not {quoted(item)}")
    return found


class _Choice:
    """An answer and where in it the next token's text begins."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self.text = tokenizer.decode(prompt)
        self.tokens: list[_Scored] = []
        self.scores: list[_Scored] = []
        self.ends: Mapping[str, Any] = NOT_ENDED

    def logprobs(self, scored: Sequence[_Scored]) -> dict[str, Any]:
        """Of tokens that follow those told of before."""
        told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, found in scored:
            text, logprob, top = self._text(token), None, None
            if found is not None:
                logprob = finite(found.logprob)
                top = {text: logprob} | {self._text(one): finite(other) for one, other in reversed(found.top)}
            for name, value in zip(told, (text, logprob, top, self._offset), strict=True):
                told[name].append(value)
            self._offset += len(self._characters.decode(self._tokenizer.token_bytes(token)))
        return told

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


class CompletionWriter(ChoicesWriter):
    """Answers as text completions, or chunks of them."""

    kind = chunk_kind = "text_completion"

    def __init__(self, ask: Ask, context: Context, answer_id: str) -> None:
        super().__init__(ask, context, answer_id)
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
        self._counts.add(update)
        choice, scored = self._choices[update.sample], self._scored(update)
        fresh: list[_Scored] = [] if scored is None or self._ask.max_tokens_zero else [scored]
        if update.details is not None and self._ask.params.prompt_logprobs:
            known = [None, *update.details.prompt_logprobs]
            choice.scores = list(zip(self._prompt_of(update.sample), known, strict=False))
        if update.finished is not None:
            choice.ends = self._ends(update)
        if not self._ask.stream:
            if not self._ask.max_tokens_zero:
                choice.text += update.text
                choice.tokens += fresh
            return []
        if not (update.text or fresh or update.finished):
            return []
        return [self._event(update.sample, update.text, self._logprobs(choice, fresh), choice.ends)]

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = []
        for number, one in enumerate(self._choices):
            logprobs = self._logprobs(one, [*one.scores, *one.tokens])
            choices.append({"index": number, "text": one.text, "logprobs": logprobs, **one.ends})
        return self._answer(choices)

    def _logprobs(self, choice: _Choice, scored: Sequence[_Scored]) -> dict[str, Any] | None:
        return None if self._ask.params.logprobs is None else choice.logprobs(scored)

    def _prompt_of(self, sample: int) -> tuple[int, ...]:
        return self._prompts[sample // self._ask.params.num_samples]

    def _event(self, number: int, text: str, logprobs: dict[str, Any] | None, ends: Mapping[str, Any]) -> Event:
        return self._chunk([{"index": number, "text": text, "logprobs": logprobs, **ends}])
