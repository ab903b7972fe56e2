"""Thoughts with a budget: a thought that has taken its tokens is closed, and the answer goes on behind it.

The thought is a request of its own, without what is asked of the answer (stop strings, a schema), and so is the answer:
its prompt is the first one's with the thought behind it, which lies in the cache.
"""

from dataclasses import dataclass, field, replace

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Update
from glmforge.generate.params import SamplingParams
from glmforge.protocol.request import Ask

_END = "</think>"


@dataclass
class _Thought:
    tokens: list[int] = field(default_factory=list)
    num_cached: int = 0
    is_over: bool = False


class Thoughts:
    """Of the samples of an `ask` that has a budget."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer) -> None:
        assert ask.reasoning_budget is not None, "without a budget a thought is part of the answer"
        self._ask, self._end = ask, tokenizer.special_id(_END)
        self._first = replace(
            ask.params,
            num_samples=1,
            max_new_tokens=min(ask.reasoning_budget, ask.params.max_new_tokens),
            min_new_tokens=0,
            stop=(),
            stop_ids=(self._end, *tokenizer.stop_ids),
            json_schema=None,
            grammar=None,
        )
        self._thoughts = [_Thought() for _ in range(ask.params.num_samples)]

    def first_params(self, sample: int) -> SamplingParams:
        """What the thought of a sample is generated with."""
        return self._seeded(self._first, sample)

    def take(self, update: Update) -> tuple[list[Update], tuple[list[int], SamplingParams] | None]:
        """What readers are told of an update; and, where a thought is over, prompt and parameters of the answer."""
        thought, longest = self._thoughts[update.sample], self._ask.params.max_new_tokens
        if thought.is_over:
            return [replace(update, num_cached=thought.num_cached)], None
        thought.num_cached = update.num_cached
        thought.tokens += [] if update.token is None else [update.token]
        is_closed = update.finished == "stop" and update.stop == self._end
        if not (is_closed or update.finished == "length") or len(thought.tokens) >= longest:
            return [replace(update, text=update.text + _END, stop=None) if is_closed else update], None
        thought.is_over = True
        told = [replace(update, finished=None, stop=None)] if update.token is not None else []
        if is_closed:
            told[0] = replace(told[0], text=update.text + _END)
        else:
            thought.tokens.append(self._end)
            told.append(Update(update.request, update.sample, self._end, None, _END, num_cached=update.num_cached))
        if (left := longest - len(thought.tokens)) < 1:
            told[-1] = replace(told[-1], finished="length")
            return told, None
        fewest = max(0, self._ask.params.min_new_tokens - len(thought.tokens))
        params = replace(self._ask.params, num_samples=1, max_new_tokens=left, min_new_tokens=fewest)
        return told, ([*self._ask.prompt, *thought.tokens], self._seeded(params, update.sample))

    def _seeded(self, params: SamplingParams, sample: int) -> SamplingParams:
        return params if params.seed is None else replace(params, seed=(params.seed + sample) % 2**63)
