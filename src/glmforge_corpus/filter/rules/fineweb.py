"""FineWeb's own rules (Penedo et al. 2024, arXiv:2406.17557, section 3.6): pages that are lists, menus and repeats.

Meaning and defaults are those of datatrove's filter; every rule is evaluated for every document and counted. For other
languages than English the limits are FineWeb-2's (`language_limits.py`): the rule of short lines is not applied,
and a tenth of the characters may be in repeated lines.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Outcome
from glmforge_corpus.filter.rules.language_limits import FINEWEB2_DUPLICATE_CHARACTERS
from glmforge_corpus.filter.rules.prose import SHORT_LINE, DocumentLanguages, ProseBlock, above, share
from glmforge_corpus.filter.rules.repetition import (
    DUPLICATE_FULL_CHARACTERS,
    ENDED_LINES,
    FULL_LINES,
    SHORT_LINES,
)
from glmforge_corpus.filter.rules.shared_counts import lines_of_batch, words_of_batch
from glmforge_corpus.words.word_kernels import CHARACTERS, NEWLINES, WORDS


class FineWeb(ProseBlock):
    """Ends, lengths and repetition of lines; blank lines are not looked at. 0 turns a limit off."""

    kind: ClassVar[str] = "fineweb"
    min_ended_lines: float = Field(default=0.12, ge=0, le=1, description="share of lines that end a sentence; English")
    allow_no_ended_lines: bool = Field(default=False, description="keep documents in which no line ends a sentence")
    max_short_lines: float = Field(default=0.67, ge=0, description="share of short lines; English only")
    short_line_length: int = Field(default=SHORT_LINE, ge=0, description="characters of the longest short line")
    max_duplicate_characters: float = Field(
        default=0.01, ge=0, description="share of characters in duplicate lines; English"
    )
    max_new_lines: float = Field(default=0.3, ge=0, description="line feeds per word; English")

    def process(self, batch: DocumentBatch) -> Outcome:
        words, rows = words_of_batch(batch)
        counts = words.counts[rows].T
        lines = lines_of_batch(batch, self.short_line_length).T
        languages = self.languages(batch)
        duplicates = share(lines[DUPLICATE_FULL_CHARACTERS], counts[CHARACTERS] - counts[NEWLINES])
        rules = {
            "empty": lines[FULL_LINES] == 0,
            "too few lines end sentences": self._too_few_ended(lines, languages),
            "too many short lines": above(
                share(lines[SHORT_LINES], lines[FULL_LINES]), languages.limits(self.max_short_lines, lambda _: 0, 0)
            ),
            "characters in duplicate lines": above(
                duplicates,
                languages.limits(
                    self.max_duplicate_characters,
                    lambda _: FINEWEB2_DUPLICATE_CHARACTERS,
                    FINEWEB2_DUPLICATE_CHARACTERS,
                ),
            ),
            "too many line feeds": above(
                share(counts[NEWLINES], counts[WORDS]),
                languages.limits(self.max_new_lines, lambda limits: limits.max_new_lines, self.max_new_lines),
            ),
        }
        return self.outcome(batch, rules)

    def _too_few_ended(self, lines: NDArray[np.int64], languages: DocumentLanguages) -> NDArray[np.bool_]:
        ended = share(lines[ENDED_LINES], lines[FULL_LINES])
        least = languages.limits(self.min_ended_lines, lambda limits: limits.min_ended_lines, 0)
        few = ended < least
        return few & (ended != 0) if self.allow_no_ended_lines else few
