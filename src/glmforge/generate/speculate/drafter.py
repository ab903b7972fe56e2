"""What a drafter is given after each step, and gives for the next one."""

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

from glmforge.generate.scheduler import Work
from glmforge.generate.sequence import Sequence


class Computed(NamedTuple):
    """What a step computed of a sequence: from its token `start` to its last one in the cache.

    `row` is the place of the first of them among all tokens of the step.
    """

    sequence: Sequence
    start: int
    row: int


def computed_by(steps: Items[Work]) -> list[Computed]:
    """What a step computes of each sequence, before the scheduler knows that it has."""
    rows = itertools.accumulate((work.num_tokens for work in steps), initial=0)
    return [Computed(work.sequence, work.sequence.num_cached, row) for work, row in zip(steps, rows, strict=False)]


class Drafter(Protocol):
    """Guesses at tokens to come. A poor guess costs time and changes no token."""

    def draft(self, computed: Items[Computed], lengths: Mapping[Sequence, int]) -> None:
        """Set `drafts` of each sequence in `lengths` to at most this many tokens.

        Args:
            computed: all that the step computed whose sequence still has pages.
            lengths: at least 1 each; the sequences are among `computed`, and have pages for this many more tokens.
        """
        ...
