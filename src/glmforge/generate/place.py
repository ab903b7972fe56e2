"""A place in an answer where a token is chosen: all that rules, filters and draws depend on."""

from typing import NamedTuple

from torch import Tensor

from glmforge.generate.params import SamplingParams
from glmforge.generate.sequence import Sequence


class Place(NamedTuple):
    """Where a token is to be chosen: behind the tokens of a sequence, and `drafted` ones that are not among them yet.

    `allowed` is bool [V], what the request's grammar lets come here; None without one, and for a drafter, which guesses
    without it.
    """

    sequence: Sequence
    drafted: tuple[int, ...] = ()
    allowed: Tensor | None = None

    @property
    def params(self) -> SamplingParams:
        return self.sequence.request.params

    @property
    def number(self) -> int:
        """So many tokens are before it."""
        return len(self.sequence.tokens) + len(self.drafted)

    @property
    def num_answered(self) -> int:
        return self.number - len(self.sequence.request.prompt)

    @property
    def answer(self) -> list[int]:
        return [*self.sequence.answer, *self.drafted]
