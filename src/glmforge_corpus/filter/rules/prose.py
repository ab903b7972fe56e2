"""What blocks with rules about prose have in common: options, languages and their limits, verdicts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.filter.rules.language_limits import LanguageLimits, language_limits

PROGRAMS = "code"
ENGLISH = "en"


@dataclass(frozen=True, slots=True)
class DocumentLanguages:
    """The languages of n documents.

    Attributes:
        names: the languages there are.
        codes: `[n]`, index into `names`.
    """

    names: tuple[str, ...]
    codes: NDArray[np.integer]

    @classmethod
    def of(cls, batch: DocumentBatch, per_language: bool, default: str) -> Self:
        """The documents' languages, `default` where unknown; all English unless `per_language`."""
        if not per_language:
            return cls((ENGLISH,), np.zeros(len(batch), np.int32))
        encoded = batch.table.column("language").fill_null(default).dictionary_encode()
        return cls(tuple(encoded.dictionary.to_pylist()), encoded.indices.to_numpy())

    def are(self, languages: frozenset[str] | set[str]) -> NDArray[np.bool_]:
        """`[n]`: whether a document's language is among `languages`."""
        return self.pick(lambda name: name in languages).astype(bool)

    def pick(self, value: Callable[[str], float]) -> NDArray[np.float64]:
        """`[n]`: a value per document, found once per language."""
        values = np.array([value(name) for name in self.names] or [0.0], np.float64)
        return np.asarray(values[self.codes])

    def limits(self, english: float, of: Callable[[LanguageLimits], float], unknown: float) -> NDArray[np.float64]:
        """`[n]`: a rule's limit: `english` is the option's, `unknown` for languages without limits."""
        table = language_limits()

        def limit(name: str) -> float:
            if name == ENGLISH or english == 0:  # turned off
                return english
            return of(table[name]) if name in table else unknown

        return self.pick(limit)


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
        default_language: the language of documents without one.
    """

    per_language: bool = Field(default=True, description="limits per language; programs have none")
    default_language: str = Field(default=ENGLISH, description="language of documents without one")

    def languages(self, batch: DocumentBatch) -> DocumentLanguages:
        return DocumentLanguages.of(batch, self.per_language, self.default_language)

    def outcome(self, batch: DocumentBatch, rules: dict[str, NDArray[np.bool_]]) -> Outcome:
        """The rules' verdicts under this block's name; programs pass all of them."""
        prose = ~self.languages(batch).are({PROGRAMS})
        return Outcome(batch, {f"{self.kind}: {rule}": failed & prose for rule, failed in rules.items()})


def above(values: NDArray[Any], limit: float | NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a value is above its limit; a limit of 0 is none."""
    return np.asarray((values > limit) & (np.asarray(limit) != 0), np.bool_)
