"""Toxic texts: hits of word lists per 1,000 words, and the probability that a trained classifier gives.

Word lists find words, not meaning: medicine, law and novels use them, too, and hate can do without. So a single hit
says little; density does, and that is the score ("toxic_words"). Three severities are bounds of that density; which
of them is removed is an option, and nothing is removed by default. A classifier (`glmforge data train-toxicity`)
adds the score "toxicity", its calibrated probability. Both apply if both are given.

No list is packaged. A document is searched with the list of its own language: terms of one language are innocent
words of others. Put the block behind `language`, which fills that column.
"""

from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.filter.linear.classifier import load_classifier
from glmforge_corpus.filter.linear.hashed_features import count_tokens
from glmforge_corpus.filter.word_lists import Hits, WordLists, load_word_lists

Severity = Literal["mild", "moderate", "severe"]


class Severities(Strict):
    """Hits per 1,000 words from which on a document is that toxic."""

    mild: float = Field(default=1.0, ge=0)
    moderate: float = Field(default=5.0, ge=0)
    severe: float = Field(default=20.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.mild <= self.moderate <= self.severe:
            refuse("severe", f"must be mild <= moderate <= severe: {self.mild}, {self.moderate}, {self.severe}")
        return self


class Toxicity(Block):
    """Scores documents ("toxic_words", "toxicity") and optionally removes the worst."""

    kind: ClassVar[str] = "toxicity"
    lists: YamlPath | None = Field(
        default=None, description="directory of word lists, one file per language; or one file"
    )
    allow: tuple[str, ...] = Field(
        default=(), strict=False, description="phrases that may contain a term without a hit"
    )
    all_lists: bool = Field(default=False, description="search every document with the lists of all languages")
    fallback_language: str = Field(default="en", description="list used for documents of unknown language")
    severities: Severities = Field(default=Severities(), description="hits per 1,000 words of each severity")
    min_hits: int = Field(
        default=2, ge=1, description="minimum number of hits for any severity, however short the text"
    )
    remove: Severity | None = Field(
        default=None, description="remove documents of at least this severity by word lists"
    )
    model: YamlPath | None = Field(default=None, description="model file of train-toxicity")
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="remove documents of at least this probability"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lists is None and self.model is None:
            refuse("lists", "the block needs 'lists' (a directory of word lists), 'model' (train-toxicity), or both")
        if self.threshold is not None and self.model is None:
            refuse("threshold", "applies to the model's probability; set 'model', or use 'remove' for word lists")
        if self.remove is not None and self.lists is None:
            refuse("remove", "applies to word lists; set 'lists', or use 'threshold' for the model")
        return self

    def check(self) -> Self:
        if self.lists is not None:
            load_word_lists(self.lists, self.allow)
        if self.model is not None:
            load_classifier(self.model)
        return self

    def process(self, batch: DocumentBatch) -> Outcome:
        failed: dict[str, NDArray[np.bool_]] = {}
        counts: dict[str, int] = {}
        if self.lists is not None:
            batch = self._search(batch, load_word_lists(self.lists, self.allow), failed, counts)
        if self.model is not None:
            probabilities = load_classifier(self.model).probabilities(batch.text_bytes, batch.text_offsets)
            batch = batch.with_score("toxicity", probabilities)
            if self.threshold is not None:
                failed["toxicity: classifier"] = batch.score("toxicity") >= np.float32(self.threshold)
        return Outcome(batch, failed, counts)

    def _search(
        self, batch: DocumentBatch, lists: WordLists, failed: dict[str, NDArray[np.bool_]], counts: dict[str, int]
    ) -> DocumentBatch:
        hits = lists.find(batch.text_bytes, batch.text_offsets, self._languages(batch, lists))
        per_document = np.bincount(hits.rows, minlength=len(batch))
        density = _density(batch, hits, per_document)
        enough = per_document >= self.min_hits
        counts["toxicity: word hits"] = len(hits.rows)
        for severity in ("mild", "moderate", "severe"):
            reached = enough & (density >= getattr(self.severities, severity))
            counts[f"toxicity: at least {severity}"] = int(reached.sum())
            if severity == self.remove:
                failed[f"toxicity: {severity}"] = reached
        return batch.with_score("toxic_words", density)

    def _languages(self, batch: DocumentBatch, lists: WordLists) -> NDArray[np.uint64]:
        """`[n]` bits of the lists to search each document with."""
        if self.all_lists:
            return np.full(len(batch), sum(lists.languages.values()), np.uint64)
        fallback = lists.languages.get(self.fallback_language, 0)
        names = batch.table.column("language").to_pylist()
        bits = (fallback if name is None else lists.languages.get(name.split("-")[0], 0) for name in names)
        return np.fromiter(bits, np.uint64, len(batch))


def _density(batch: DocumentBatch, hits: Hits, per_document: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[n]` hits per 1,000 words; words are counted in documents with hits only."""
    density = np.zeros(len(batch))
    text, offsets = batch.text_bytes, batch.text_offsets
    for row in np.unique(hits.rows):
        words = count_tokens(text, offsets[row], offsets[row + 1])
        density[row] = 1000 * per_document[row] / max(words, 1)
    return density
