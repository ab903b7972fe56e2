"""Which language each document of a batch is in, and what limit a rule has for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch
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
