"""The stage that finds documents which are nearly the same.

    signatures  a task per shard: texts -> MinHash signatures -> band keys, sorted
    buckets     a task per part of the key space: texts with a key in common are candidate pairs
    sets        a task per shard: shingles, weights and ids of the candidates
    similarity  a task per shard: which pairs are as similar as `threshold` says, by exact Jaccard
    clusters    one task: pairs joined, one document of each cluster stays
    documents   a task per shard: what is left of it

Candidates are verified, so that the bands have one duty only: to miss nothing that counts. A false candidate costs a
microsecond, a missed pair is final; the bands are therefore chosen with a miss weighing `MISS_WEIGHT` against
1 - `MISS_WEIGHT`. After verification a document is removed only if a chain of pairs, each at least `threshold`
similar, leads to the one that stays.
"""

import difflib
import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pyarrow import parquet
from pydantic import Field, PositiveInt, model_validator

from glmforge.config.fields import YamlPath
from glmforge.config.model import refuse
from glmforge.data.documents.batch import SCORE_PREFIX, read_batches
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.bands import MAX_PARTS, write_keys
from glmforge_corpus.deduplicate.clusters import REMOVED, Selection
from glmforge_corpus.deduplicate.index import SIGNATURES, IndexInfo, Member, Store, chain_of, old_members
from glmforge_corpus.deduplicate.removal import Removal
from glmforge_corpus.deduplicate.sets import Sets
from glmforge_corpus.deduplicate.signatures import Bands, Shingling, band_keys, best_bands, signatures
from glmforge_corpus.deduplicate.similarity import NEEDED, SIGNATURE_FILE, Buckets, Similarity
from glmforge_corpus.deduplicate.units import Unit
from glmforge_corpus.pipeline.stage import ShardStep, Stage, StageContext, Step, TaskOutput

MISS_WEIGHT = 0.98
REASON = "minhash: near duplicate"
TOO_SHORT = "minhash: documents too short to judge"
"""Count of documents that one changed word in their middle makes unlike themselves (`least_shingles`)."""

_WEIGH_BY = {"first": "", "longest": "bytes"}
"""`keep` -> what documents are weighed by; the name of a score is itself."""


class MinHash(Stage):
    """Near-duplicates by MinHash and locality-sensitive hashing."""

    kind: ClassVar[str] = "minhash"
    revision: ClassVar[int] = 2

    threshold: float = Field(
        default=0.85, gt=0, le=1, description="Jaccard similarity above which texts are duplicates"
    )
    shingle: Unit = Field(
        default="mixed",
        description="unit of shingles: mixed (words; letters in scripts without spaces), word or character",
    )
    n: int = Field(default=5, ge=1, le=1000, description="words or characters per shingle")
    strip_punctuation: bool = Field(default=False, description="treat punctuation and symbols as word separators")
    permutations: int = Field(default=128, ge=1, le=4096, description="maximum number of signature entries")
    bands: PositiveInt | None = Field(
        default=None, description="number of bands (default: chosen from the threshold); needs rows"
    )
    rows: PositiveInt | None = Field(default=None, description="signature entries per band")
    verify: Literal["exact", "signature"] = Field(default="exact", description="how candidates are compared")
    keep: str = Field(default="first", min_length=1, description="first, longest, or the name of a score: the highest")
    check_only: bool = Field(default=False, description="only report pairs and clusters")
    index: tuple[YamlPath, ...] = Field(
        default=(), strict=False, description="also deduplicate against these earlier stages"
    )
    store: Store = Field(
        default="nothing", description="for later runs: store signatures, or the shingles of all texts"
    )

    @model_validator(mode="after")
    def _check_bands(self) -> Self:
        if (self.bands is None) != (self.rows is None):
            refuse("bands", "set both bands and rows, or neither")
        return self

    @model_validator(mode="after")
    def _check_keep(self) -> Self:
        near = difflib.get_close_matches(self.keep, _WEIGH_BY, n=1, cutoff=0.75)
        if near and near[0] != self.keep:
            refuse("keep", f"'{self.keep}': did you mean '{near[0]}'? (first, longest, or a score)")
        return self

    @property
    def shingling(self) -> Shingling:
        return Shingling(unit=self.shingle, size=self.n, strip_punctuation=self.strip_punctuation)

    def banding(self) -> Bands:
        """The bands given, or those that the threshold asks for."""
        if self.bands is not None and self.rows is not None:
            return Bands(self.bands, self.rows)
        return _best_bands(self.threshold, self.permutations)

    def check(self) -> Self:
        old_members(self.index, self.shingling, self.banding())
        return self

    def describe(self) -> str:
        bands = self.banding()
        return f"minhash: {self.n}-{self.shingle} shingles, Jaccard >= {self.threshold}, {bands.number} x {bands.rows}"

    def steps(self, context: StageContext) -> list[Step]:
        old = old_members(self.index, self.shingling, self.banding())
        shards, stage, exact = tuple(context.shards), context.directory, self.verify == "exact"
        new = [Member(stage, shard, exact) for shard in range(len(shards))]
        members = tuple(old + new)
        parts = min(max(len(shards), 1), MAX_PARTS)
        estimates = not exact or self.store != "nothing" or not all(member.sets for member in old)
        buckets = Buckets(members, len(old), parts)
        weigh_by = _WEIGH_BY.get(self.keep, self.keep)
        hashed = self.shingling if exact or self.store == "shingles" else None
        needed = tuple(path / NEEDED for path in buckets.outputs(stage)) if self.store == "nothing" else None
        similarity = Similarity(members, len(old), buckets.outputs(stage), self.threshold)
        info = IndexInfo(
            self.shingling.model_dump(),
            tuple(self.banding()),  # type: ignore[arg-type]
            self.store,
            len(shards),
            tuple(map(str, chain_of(self.index))),
        )
        selection = Selection(members, len(old), None if self.store == "nothing" else info)
        removed = {} if self.check_only else {REASON: context.task_directory(selection.name, 0) / REMOVED}
        return [
            Signatures(
                shards,
                self.shingling,
                self.banding(),
                estimates,
                least_shingles(self.threshold, self.n),
                "" if self.keep in _WEIGH_BY else self.keep,
            ),
            buckets,
            Sets(shards, len(old), needed, hashed, weigh_by),
            similarity,
            selection,
            Removal(shards, removed, len(old)),
        ]


@functools.cache
def _best_bands(threshold: float, permutations: int) -> Bands:
    return best_bands(threshold, permutations, MISS_WEIGHT)


def least_shingles(threshold: float, size: int) -> int:
    """The fewest shingles with which a text and its copy with one word changed in the middle reach the threshold.

    The change takes `size` shingles of each away: with s of them, J = (s - size) / (s + size). At a threshold of 1
    no number is enough: 0.
    """
    return math.ceil(size * (1 + threshold) / (1 - threshold) - 1e-9) if threshold < 1 else 0


@dataclass(frozen=True)
class Signatures(ShardStep):
    """Band keys of each document of a shard, and its signature if signatures are compared.

    Attributes:
        least: documents with fewer shingles are counted as `TOO_SHORT`.
        score: the documents must have, since it chooses among copies; checked here, before anything is compared.
    """

    shingling: Shingling
    bands: Bands
    store_signatures: bool
    least: int
    score: str = ""
    name: str = SIGNATURES

    def run(self, task: int, output: TaskOutput) -> None:
        keys, filled, made = [np.zeros((0, self.bands.number), np.uint64)], [np.zeros(0, np.bool_)], []
        for batch in read_batches(self.shards[task], ["text"]):
            signed, counts = signatures(
                batch.text_bytes, batch.text_offsets, self.shingling, self.bands.num_permutations
            )
            keys.append(np.empty((len(batch), self.bands.number), np.uint64))
            band_keys(signed, self.bands.rows, keys[-1])
            filled.append(counts > 0)
            output.statistics.counts[TOO_SHORT] += int(((counts > 0) & (counts < self.least)).sum())
            if self.store_signatures:
                made.append(signed)
        has_shingles = np.concatenate(filled)
        if self.score and len(has_shingles):
            _check_score(self.shards[task], self.score)
        output.statistics.counts["minhash: documents without a word"] += int((~has_shingles).sum())
        write_keys(output.directory, np.concatenate(keys), has_shingles)
        if self.store_signatures:
            none = np.zeros((0, self.bands.num_permutations), np.uint32)
            np.save(output.directory / SIGNATURE_FILE, np.concatenate([none, *made]))


def _check_score(shard: Path, score: str) -> None:
    names = parquet.read_schema(shard).names
    if SCORE_PREFIX + score not in names:
        have = ", ".join(name.removeprefix(SCORE_PREFIX) for name in names if name.startswith(SCORE_PREFIX)) or "none"
        raise DataError(
            f"minhash: keep: documents have no score '{score}' (available: {have}); use one of these, first or longest"
        )
