"""A request's answer while it is being made: its tokens, its pages, how far it is computed.

Prompt and answer are one list. What is not in the cache yet is computed next, be it a prompt, one token, or all of it
again after the pages were given to others: a sequence that waits and one that decodes differ in nothing else.
"""

from dataclasses import dataclass, field
from typing import Literal

from glmforge.generate.params import SamplingParams
from glmforge.generate.prefix import PrefixNode

Reason = Literal["length", "stop", "cancelled"]


@dataclass(frozen=True)
class Request:
    """A prompt and what is asked of it; `number` is its place in the order of arrival."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams


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
    """

    request: Request
    sample: int
    tokens: list[int]
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    shared: PrefixNode | None = None
    num_shared: int = 0
    finished: Reason | None = None

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
