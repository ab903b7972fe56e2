"""A request's answer while it is being made: its tokens, its pages, how far it is computed, what is reported about it.

Prompt and answer are one list. What is not in the cache yet is computed next, be it a prompt, one token, or all of it
again after the pages were given to others: a sequence that waits and one that decodes differ in nothing else.
"""

import functools
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from glmforge.generate.grammar import SampleGrammar
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import SamplingParams
from glmforge.generate.prefix import PrefixNode
from glmforge.generate.text import TextStream

Reason = Literal["length", "stop", "cancelled", "error"]
"""Why an answer has ended: `error` where its request could not be served to its end."""


@dataclass(frozen=True)
class Request:
    """A prompt and its parameters; `number` is its place in the order of arrival, lower `priority` goes first.

    `adapter` is the name of the one that it is answered with.
    """

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int = 0
    priority: int = 0
    adapter: str | None = None

    @functools.cached_property
    def prompt_ids(self) -> Tensor:
        """int64: each token of the prompt once."""
        return torch.tensor(self.prompt).unique()


class DraftCounts(NamedTuple):
    """How many tokens were drafted, and how many of them the model confirmed."""

    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def acceptance(self) -> float:
        """The share that was confirmed, 0 if none was drafted."""
        return self.num_accepted / max(1, self.num_drafted)


NO_DRAFTS = DraftCounts()


@dataclass(eq=False)
class Sequence:
    """One sample of a request.

    Attributes:
        tokens: prompt and answer.
        num_cached: this many of `tokens` have their keys and values in `pages`.
        pages: in the order of the tokens.
        shared: the end of the path of whole pages that the prefix tree has of this sequence; None if it is not to
            learn more of them.
        finished: why, if it is.
        text, grammar: where the answer is; None where the engine has no tokenizer, or the request no grammar.
        stopped_by: the stop string or token that ended it, if one did.
        num_found: tokens of the prompt that lay in the cache when it first began; None before.
        num_held: this many steps have gone by without it, since its grammar has not said what may come next.
        prompt_logprobs: of the prompt's tokens from the second on, as far as they are known and requested.
        experts_TMK: int16, what the first `num_recorded` tokens chose in each of M MoE layers, under the weights that
            the token behind each was chosen by; None if not requested.
        drafts: guesses at the tokens to come, which the next step checks.
    """

    request: Request
    sample: int
    tokens: list[int]
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    shared: PrefixNode | None = None
    num_shared: int = 0
    finished: Reason | None = None
    text: TextStream | None = None
    grammar: SampleGrammar | None = None
    stopped_by: int | str | None = None
    num_found: int | None = None
    num_held: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    experts_TMK: Tensor | None = None
    num_recorded: int = 0
    drafts: list[int] = field(default_factory=list)
    draft_counts: DraftCounts = NO_DRAFTS

    @property
    def order(self) -> tuple[int, int, int]:
        """Who comes first is served first, within one priority."""
        return self.request.priority, self.request.number, self.sample

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_pending(self) -> int:
        """Tokens that are to be computed before the next one can be chosen; at least one."""
        return len(self.tokens) - self.num_cached

    @property
    def is_held(self) -> bool:
        """Whether its grammar has not said yet what may come next."""
        return self.grammar is not None and not self.grammar.is_known

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return len(self.request.prompt) + self.request.params.max_new_tokens - len(self.tokens)

    @property
    def known_experts(self) -> Tensor | None:
        """`experts_TMK` of all tokens but the last, from which nothing was computed."""
        return None if self.experts_TMK is None else self.experts_TMK[: len(self.tokens) - 1]

    @property
    def num_scored(self) -> int:
        """After this many tokens the prompt's log-probabilities are known, or were not asked for."""
        return max(0, self.request.params.prompt_logprobs_from - 1) + len(self.prompt_logprobs)

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are still pending."""
        return self.request.params.prompt_logprobs and self.num_scored < len(self.request.prompt) - 1

    @property
    def num_skippable(self) -> int:
        """So many of its first tokens need not be computed where their keys and values are known."""
        limits = [len(self.tokens) - 1]
        if self.scores_prompt:
            limits.append(self.num_scored)
        if self.request.params.experts:
            limits.append(self.num_recorded)
        return min(limits)

    def settle(self) -> None:
        """Let its last token be computed again where none is pending: what may follow it was not known, or the step
        failed before one was chosen."""
        if self.num_pending == 0:
            self.drafts.clear()
            self.num_cached -= 1

    def append(self, token: int) -> bool:
        """Add the next token; whether it was drafted, so that the one behind it can be chosen as well.

        What was computed of a confirmed draft is in the cache already; one wrong draft ends all behind it.
        """
        self.tokens.append(token)
        if not self.drafts:
            return False
        drafted, accepted = self.draft_counts
        if self.drafts[0] != token:
            self.draft_counts = DraftCounts(drafted + len(self.drafts), accepted)
            self.drafts.clear()
            return False
        self.draft_counts = DraftCounts(drafted + 1, accepted + 1)
        del self.drafts[0]
        self.num_cached += 1
        if self.request.params.experts:
            self.num_recorded = self.num_cached  # written with the step that checked the draft
        return True

    def read_last(self) -> tuple[str, Reason | None]:
        """Of its last token, once: the text that is certain since, and why the answer ends, if it does.

        Under a grammar only it knows whether the longest answer is also complete; it is asked later.
        """
        token, params = self.tokens[-1], self.request.params
        number = len(self.tokens) - len(self.request.prompt)
        may_stop = number >= params.min_new_tokens
        if token in params.stop_ids and may_stop:
            self.stopped_by = token
            return self.finish_text(), "stop"
        text = "" if self.text is None else self.text.add(token, may_stop=may_stop)
        if self.text is not None and self.text.stopped:
            self.stopped_by = self.text.stopped_by
            return text + self.finish_text(), "stop"
        if number == params.max_new_tokens and self.grammar is None:
            return text + self.finish_text(), "length"
        return text, None

    def take_record(self, first: "Sequence") -> None:
        """Take from another sample of the request what is known of the prompt."""
        self.prompt_logprobs, self.num_found = list(first.prompt_logprobs), first.num_found
        if first.experts_TMK is not None:
            self.experts_TMK, self.num_recorded = first.experts_TMK.clone(), first.num_recorded

    def forget_record(self) -> None:
        """Its keys are gone: what is reported about the prompt must come from the pass that chooses its first token.

        Once a token is chosen, reported values stay, even if other weights recompute the keys.
        """
        if len(self.tokens) == len(self.request.prompt):
            self.prompt_logprobs.clear()
            self.num_recorded = 0

    def finish_text(self) -> str:
        """The text that was held back, when no more tokens follow."""
        return "" if self.text is None else self.text.finish()
