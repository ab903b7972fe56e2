"""How good a text is: a score in [0, 1], three buckets, and how often a mixture should use each document.

With a model (`glmforge data train-quality`) the score is its calibrated probability that the text is like the good
seeds. Without one it is a heuristic of text statistics (`quality_heuristic.py`), which the counts of a run then call
so. Scores of the two cannot be compared.

How often a document is used is decided by its bucket's rate: rate 2.3 means twice, and a third time for 30 % of the
documents, chosen by a hash of their ids: the same on every machine, regardless of the batch.
"""

from typing import ClassVar, Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import Field, model_validator

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse
from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.filter.linear.classifier import load_classifier
from glmforge_corpus.filter.quality_heuristic import heuristic_quality

LOW, MEDIUM, HIGH = range(3)
"""Values of the score "quality_bucket"."""


class Buckets(Strict):
    """Bounds of the buckets: `high` from its value on, `low` below its value, medium between."""

    high: float = Field(ge=0, le=1, description="lowest score of bucket high")
    low: float = Field(ge=0, le=1, description="lowest score above bucket low")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            refuse("low", f"{self.low} is more than high = {self.high}")
        return self


class Upsample(Strict):
    """How often the documents of a bucket are to be used; 0.25 keeps a quarter of them."""

    high: float = Field(default=1.0, ge=0, le=100)
    medium: float = Field(default=1.0, ge=0, le=100)
    low: float = Field(default=1.0, ge=0, le=100)


HEURISTIC_BUCKETS = Buckets(high=0.8, low=0.5)
"""Without a model: 0.5 is where a published filter's limit is met (see `quality_heuristic.py`), 0.8 well clear."""


class Quality(Block):
    """Scores documents ("quality", "quality_bucket"), removes those below a threshold, sets rates of use ("repeat")."""

    kind: ClassVar[str] = "quality"
    model: YamlPath | None = Field(default=None, description="model file from train-quality; default: a heuristic")
    threshold: float | None = Field(default=None, ge=0, le=1, description="remove documents that score less")
    buckets: Buckets | None = Field(default=None, description="bounds of high and low; default: the model's")
    upsample: Upsample | None = Field(
        default=None, description="copies per document of each bucket, fractions too; stored as score 'repeat'"
    )
    languages: tuple[str, ...] | None = Field(
        default=None, strict=False, description="score only documents in these languages; default: all except programs"
    )
    seed: int = Field(default=0, ge=0, description="seed of the sampling for fractional rates")

    def check(self) -> Self:
        if self.model is not None:
            load_classifier(self.model)
        return self

    def process(self, batch: DocumentBatch) -> Outcome:
        judged = self._judged(batch)
        scores = np.where(judged, self._scores(batch), np.nan).astype(np.float32)
        batch = batch.with_score("quality", scores)
        failed = {} if self.threshold is None else {"quality: below threshold": scores < np.float32(self.threshold)}
        batch, counts = self._with_buckets(batch, scores)
        if self.upsample is not None:
            batch = batch.with_score("repeat", self._repeats(batch))
            failed["quality: not drawn"] = batch.score("repeat") == 0
        counts[f"quality: judged by {'heuristic' if self.model is None else 'model'}"] = int(judged.sum())
        return Outcome(batch, failed, counts)

    def _judged(self, batch: DocumentBatch) -> NDArray[np.bool_]:
        languages = batch.table.column("language").to_pylist()
        if self.languages is None:
            return np.array([language != "code" for language in languages], bool)
        return np.array([language in self.languages for language in languages], bool)

    def _scores(self, batch: DocumentBatch) -> NDArray[np.float64]:
        if self.model is None:
            return heuristic_quality(batch.text_bytes, batch.text_offsets)
        return load_classifier(self.model).probabilities(batch.text_bytes, batch.text_offsets)

    def _bounds(self) -> Buckets:
        if self.buckets is not None or self.model is None:
            return self.buckets or HEURISTIC_BUCKETS
        stored = load_classifier(self.model).meta.get("buckets")
        if stored is None:
            raise DataError(f"{self.model}: has no buckets; set 'buckets', or train it with train-quality")
        return Buckets(high=stored["high"]["threshold"], low=stored["low"]["threshold"])

    def _with_buckets(self, batch: DocumentBatch, scores: NDArray[np.float32]) -> tuple[DocumentBatch, dict[str, int]]:
        bounds = self._bounds()
        buckets = (scores >= np.float32(bounds.low)).astype(np.float32) + (scores >= np.float32(bounds.high))
        buckets[np.isnan(scores)] = np.nan
        names = {"low": LOW, "medium": MEDIUM, "high": HIGH}
        counts = {f"quality: {name}": int(np.sum(buckets == value)) for name, value in names.items()}
        return batch.with_score("quality_bucket", buckets), counts

    def _repeats(self, batch: DocumentBatch) -> NDArray[np.float32]:
        """Whole numbers; 1 for documents without a score."""
        assert self.upsample is not None
        rates = np.array([self.upsample.low, self.upsample.medium, self.upsample.high, 1.0])
        buckets = batch.score("quality_bucket")
        rate = rates[np.where(np.isnan(buckets), 3, buckets).astype(np.int64)]
        whole = np.floor(rate)
        rest = rate - whole
        rows = np.flatnonzero(rest)
        ids = batch.table.column("id").take(rows).to_pylist() if len(rows) else []
        draws = np.array([xxhash.xxh3_64_intdigest(name.encode(), self.seed) for name in ids], np.uint64)
        whole[rows] += draws.astype(np.float64) / 2**64 < rest[rows]
        return np.asarray(whole, np.float32)
