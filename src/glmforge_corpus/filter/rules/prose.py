"""What the blocks with rules about prose have in common: options, limits, verdicts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.filter.rules.languages import ENGLISH, PROGRAMS, DocumentLanguages

SHORT_LINE = 30
"""Characters of a short line in FineWeb's rules; lines are counted once for both."""


def share(part: NDArray[np.integer], whole: NDArray[np.integer]) -> NDArray[np.float64]:
    """`part / whole` for each document; NaN, which no limit excludes, where there is nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole == 0, np.nan, part / whole)


class ProseBlock(Block):
    """Options of all blocks whose rules are about prose.

    Attributes:
        per_language: whether documents in other languages than English have limits of their own.
        default_language: the language of documents that have none yet.
    """

    per_language: bool = Field(default=True, description="limits per language, and none for programs")
    default_language: str = Field(default=ENGLISH, description="language of documents that have none yet")

    def languages(self, batch: DocumentBatch) -> DocumentLanguages:
        return DocumentLanguages.of(batch, self.per_language, self.default_language)

    def outcome(self, batch: DocumentBatch, rules: dict[str, NDArray[np.bool_]]) -> Outcome:
        """The rules' verdicts under this block's name; programs pass all of them."""
        prose = ~self.languages(batch).are({PROGRAMS})
        return Outcome(batch, {f"{self.kind}: {rule}": failed & prose for rule, failed in rules.items()})


def above(values: NDArray[Any], limit: float | NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a value is above its limit; a limit of 0 is none."""
    return np.asarray((values > limit) & (np.asarray(limit) != 0), np.bool_)
