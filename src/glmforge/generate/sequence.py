"""A request's answer while it is being made: its tokens, its pages, how far it is computed.

Prompt and answer are one list. What is not in the cache yet is computed next, be it a prompt, one token, or all of it
again after the pages were given to others: a sequence that waits and one that decodes differ in nothing else.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from glmforge.generate.params import SamplingParams
from glmforge.generate.prefix import PrefixNode

Reason = Literal["length", "stop", "cancelled"]


@dataclass(frozen=True)
class Request:
    """A prompt and what is asked of it; `number` is its place in the order of arrival."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams


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
        num_cached: so many of `tokens` have their keys and values in `pages`.
        pages: in the order of the tokens.
        shared: the end of the path of whole pages that the prefix tree has of this sequence; None if it is not to
            learn more of them.
        finished: why, if it is.
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
    drafts: list[int] = field(default_factory=list)
    draft_counts: DraftCounts = NO_DRAFTS

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first is served first."""
        return self.request.number, self.sample

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_pending(self) -> int:
        """Tokens that are to be computed before the next one can be chosen; at least one."""
        return len(self.tokens) - self.num_cached

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return len(self.request.prompt) + self.request.params.max_new_tokens - len(self.tokens)

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
        return True
