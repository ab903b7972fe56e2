"""What tasks count: mergeable in any order, so that totals do not depend on who ran what when."""

import heapq
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch

SAMPLES_KEPT = 5
EXCERPT_CHARACTERS = 400
NUM_SCORE_BINS = 50


@dataclass
class Flow:
    """Documents and bytes of text."""

    documents: int = 0
    bytes: int = 0

    def add(self, documents: int, num_bytes: int) -> None:
        self.documents += documents
        self.bytes += num_bytes


@dataclass
class Statistics:
    """Counts of a task, a step, a stage or a whole run.

    Attributes:
        read, written: what came in and what goes on.
        removed: reason -> what was removed for it; a document has one reason.
        failed: rule -> documents that fail it; a document may fail many.
        counts: further counters.
        quarantined: reason -> records that could not be read as documents.
        languages: language -> what is written in it ("unknown" where not detected).
        sources: source -> what is written of it.
        lengths: k -> documents written whose text has [2^k, 2^(k+1)) bytes.
        scores: score -> documents written per bin of [0, 1] in `NUM_SCORE_BINS` bins, of scores that lie there.
        samples: reason -> excerpts of removed or quarantined documents, the same ones on every run.
        seconds: CPU seconds spent; not reproducible, the rest is.
    """

    read: Flow = field(default_factory=Flow)
    written: Flow = field(default_factory=Flow)
    removed: dict[str, Flow] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    languages: dict[str, Flow] = field(default_factory=dict)
    sources: dict[str, Flow] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    scores: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seconds: float = 0.0

    def add_read(self, batch: DocumentBatch) -> None:
        self.read.add(len(batch), int(batch.text_lengths.sum()))

    def add_written(self, batch: DocumentBatch) -> None:
        """Count a batch that goes on, with its languages, sources, lengths and scores."""
        if not len(batch):
            return
        lengths = batch.text_lengths
        self.written.add(len(batch), int(lengths.sum()))
        _add_groups(self.languages, batch, "language", lengths)
        _add_groups(self.sources, batch, "source", lengths)
        exponents = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
        for exponent, count in zip(*np.unique(exponents, return_counts=True), strict=True):
            self.lengths[int(exponent)] += int(count)
        for name in batch.score_names:
            values = batch.score(name)
            values = values[~np.isnan(values)]
            if values.min(initial=0) < 0 or values.max(initial=0) > 1:  # a count or a rate, not a share
                continue
            bins = np.bincount((values * (NUM_SCORE_BINS - 1e-3)).astype(np.int64), minlength=NUM_SCORE_BINS)
            self.scores[name] = _sum_lists(self.scores.get(name, []), bins[:NUM_SCORE_BINS].tolist())

    def add_removed(self, reason: str, batch: DocumentBatch, rows: NDArray[np.integer]) -> None:
        """Count rows of `batch` as removed for `reason`, and keep excerpts of a few."""
        if not len(rows):
            return
        self.removed.setdefault(reason, Flow()).add(len(rows), int(batch.text_lengths[rows].sum()))
        self.add_sample(reason, batch, rows)

    def add_sample(self, reason: str, batch: DocumentBatch, rows: NDArray[np.integer]) -> None:
        """Keep excerpts of a few of these rows, if they come before those that are kept already."""
        ids = batch.table.column("id")
        kept = self.samples.setdefault(reason, [])
        worst = kept[-1]["order"] if len(kept) == SAMPLES_KEPT else 1 << 64
        ordered = ((xxhash.xxh3_64_intdigest(ids[int(row)].as_py().encode()), int(row)) for row in rows[:200])
        chosen = heapq.nsmallest(SAMPLES_KEPT, (pair for pair in ordered if pair[0] < worst))
        fresh = [{"order": order, "id": ids[row].as_py(), "text": _excerpt(batch, row)} for order, row in chosen]
        self.samples[reason] = _fewest(kept, fresh)

    def add_quarantined(self, reason: str, where: str, excerpt: str, num_records: int = 1) -> None:
        """Count a record that is no document, or several in one place, and say where."""
        self.quarantined[reason] += num_records
        sample = {"order": xxhash.xxh3_64_intdigest(where.encode()), "id": where, "text": excerpt[:EXCERPT_CHARACTERS]}
        self.samples[reason] = _fewest(self.samples.get(reason, []), [sample])

    def merge(self, other: "Statistics") -> None:
        """Add another's counts to these."""
        self.read.add(other.read.documents, other.read.bytes)
        self.written.add(other.written.documents, other.written.bytes)
        for name in ("removed", "languages", "sources"):
            mine: dict[str, Flow] = getattr(self, name)
            for key, flow in getattr(other, name).items():
                mine.setdefault(key, Flow()).add(flow.documents, flow.bytes)
        for name in ("failed", "counts", "quarantined", "lengths"):
            getattr(self, name).update(getattr(other, name))
        for name, bins in other.scores.items():
            self.scores[name] = _sum_lists(self.scores.get(name, []), bins)
        for reason, samples in other.samples.items():
            self.samples[reason] = _fewest(self.samples.get(reason, []), samples)
        self.seconds += other.seconds

    def to_json(self) -> dict[str, Any]:
        """As JSON's types, keys sorted."""
        flows = {name: {k: vars(v) for k, v in sorted(getattr(self, name).items())} for name in _FLOWS}
        counters = {name: {str(k): v for k, v in sorted(getattr(self, name).items())} for name in _COUNTERS}
        return {
            "read": vars(self.read),
            "written": vars(self.written),
            **flows,
            **counters,
            "scores": dict(sorted(self.scores.items())),
            "samples": dict(sorted(self.samples.items())),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        statistics = cls(read=Flow(**value["read"]), written=Flow(**value["written"]))
        for name in _FLOWS:
            setattr(statistics, name, {key: Flow(**flow) for key, flow in value[name].items()})
        for name in _COUNTERS:
            setattr(statistics, name, Counter(value[name]))
        statistics.lengths = Counter({int(exponent): count for exponent, count in value["lengths"].items()})
        for name in ("scores", "samples", "seconds"):
            setattr(statistics, name, value[name])
        return statistics


_FLOWS = ("removed", "languages", "sources")
_COUNTERS = ("failed", "counts", "quarantined", "lengths")


def _add_groups(groups: dict[str, Flow], batch: DocumentBatch, column: str, lengths: NDArray[np.int64]) -> None:
    encoded = batch.table.column(column).fill_null("unknown").dictionary_encode()
    codes = encoded.indices.to_numpy()
    names = encoded.dictionary.to_pylist()
    documents = np.bincount(codes, minlength=len(names))
    num_bytes = np.bincount(codes, lengths, minlength=len(names))
    for name, count, size in zip(names, documents, num_bytes, strict=True):
        groups.setdefault(name, Flow()).add(int(count), int(size))


def _sum_lists(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)] if a else list(b)


def _fewest(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples that come first in an order which depends on names alone."""
    return heapq.nsmallest(SAMPLES_KEPT, a + b, key=lambda sample: (sample["order"], sample["id"]))


def _excerpt(batch: DocumentBatch, row: int) -> str:
    return str(batch.table.column("text")[row].as_py())[:EXCERPT_CHARACTERS]


def dump_json(value: object) -> bytes:
    """JSON in one form only: sorted keys, no escapes, a line end."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
