"""From two sets of seed documents to a classifier, with figures measured on held-out documents.

Documents are split three ways by a hash of their text, so that the parts do not depend on the order of files and a
repeated text is never on both sides: most are for training, a share calibrates the probabilities, an equal share is
held out: its figures are printed and stored, and the thresholds of the buckets are chosen on it. (Those are two
numbers from hundreds of documents; the figures *at* them are a little kinder than those of new documents.) Texts in
both sets are omitted, and near-duplicates should be removed before.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.filter.linear.classifier import Features, LinearClassifier, Training, fit_platt, train_classifier

THRESHOLDS_SHOWN = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a threshold keeps: documents of at least this probability are taken for positive.

    Attributes:
        precision: share of positives among what is kept; NaN where nothing is kept.
        recall: share of the positives that is kept.
        f1: harmonic mean of the two.
        kept: share of all documents.
    """

    threshold: float
    precision: float
    recall: float
    f1: float
    kept: float

    def to_json(self) -> dict[str, float | None]:
        return {name: None if value != value else round(value, 6) for name, value in asdict(self).items()}


def figures_at(labels: NDArray[np.bool_], probabilities: NDArray[np.floating], threshold: float) -> Figures:
    """The figures of one threshold; `labels` must have a positive one."""
    kept = probabilities >= threshold
    right, num_kept, positives = int(np.sum(kept & labels)), int(kept.sum()), int(labels.sum())
    precision = right / num_kept if num_kept else float("nan")
    return Figures(threshold, precision, right / positives, 2 * right / (num_kept + positives), num_kept / len(labels))


def area_under_curve(labels: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    """Probability that a positive scores above a negative, ties counted half (Mann-Whitney); NaN without either."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / pairs) if pairs else float("nan")


def choose_thresholds(
    labels: NDArray[np.bool_], probabilities: NDArray[np.floating], high_precision: float, low_recall: float
) -> tuple[float, float]:
    """(low, high): bounds of the buckets low < medium < high.

    `high` is the smallest threshold from which on precision is at least `high_precision`; `low` the largest one whose
    recall is at least `low_recall`, so that at most 1 - low_recall of the positives are in bucket "low". On easy data
    the first lies below the second; either of them then keeps both promises, and the smaller becomes `low`, the larger
    `high`: what lies between them is what the classifier is least sure of.

    Raises:
        DataError: no threshold reaches that precision.
    """
    order = np.argsort(-probabilities, kind="stable")
    sorted_probabilities = probabilities[order].astype(np.float64)
    hits = np.cumsum(labels[order])
    last_of_value = np.append(np.diff(sorted_probabilities) != 0, True)
    thresholds, hits, kept = sorted_probabilities[last_of_value], hits[last_of_value], np.flatnonzero(last_of_value) + 1
    precision, recall = hits / kept, hits / labels.sum()
    reached = np.flatnonzero(precision >= high_precision)
    if not len(reached):
        best = int(np.argmax(precision))
        raise DataError(
            f"--high-precision {high_precision}: no threshold reaches it on the {len(labels):,} held-out documents "
            f"(best: {precision[best]:.3f} at {thresholds[best]:.3f}); lower it, or use clearer or more seeds"
        )
    below = float(thresholds[np.flatnonzero(recall >= low_recall)[0]])
    low, high = sorted((below, float(thresholds[reached[-1]])))
    return low, high


MIN_HELD_OUT = 20
"""Documents per label on which calibration and figures mean anything at all."""

_LEARN, _CALIBRATE, _HOLD_OUT = range(3)


@dataclass(frozen=True, slots=True)
class Seeds:
    """Labelled texts, each once.

    Attributes:
        texts: large_string [n].
        labels: `[n]`, true for positive.
        parts: `[n]`: learned from, for calibration, or held out.
        conflicting, repeated: texts omitted because both labels have them, or for standing twice.
    """

    texts: pa.Array
    labels: NDArray[np.bool_]
    parts: NDArray[np.int8]
    conflicting: int
    repeated: int

    def part(self, number: int) -> tuple[DocumentBatch, NDArray[np.bool_]]:
        chosen = np.flatnonzero(self.parts == number)
        texts = self.texts.take(pa.array(chosen))
        return DocumentBatch.from_columns([""] * len(chosen), texts, ""), self.labels[chosen]


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What training came to.

    Attributes:
        classifier: calibrated, with these figures in its `meta`.
        auc: of the held-out documents.
        figures: at some thresholds.
        low, high: bounds of the buckets.
        num_positive, num_negative: documents used, of all parts.
        num_held_out: of them held out.
    """

    classifier: LinearClassifier
    auc: float
    figures: list[Figures]
    low: Figures
    high: Figures
    num_positive: int
    num_negative: int
    num_held_out: int


def split_seeds(
    positive: Iterable[str],
    negative: Iterable[str],
    held_out: float,
    seed: int,
    names: tuple[str, str] = ("positive", "negative"),
) -> Seeds:
    """The texts of both labels, split; they are held in memory.

    Args:
        held_out: share of the documents to measure on; as many calibrate.
        seed: of the split.
        names: of the labels, for errors.

    Raises:
        DataError: too few documents are left to learn from or to hold out.
    """
    labels: dict[int, set[bool]] = {}
    texts: dict[int, str] = {}
    total = 0
    for label, side in ((True, positive), (False, negative)):
        for text in side:
            key = xxhash.xxh3_64_intdigest(text.encode(), seed & (2**64 - 1))
            labels.setdefault(key, set()).add(label)
            texts.setdefault(key, text)
            total += 1
    conflicting = sum(len(both) == 2 for both in labels.values())
    keys = sorted(key for key, both in labels.items() if len(both) == 1)
    positions = np.array(keys, np.uint64).astype(np.float64) / 2**64
    parts = np.where(positions < held_out, _HOLD_OUT, np.where(positions < 2 * held_out, _CALIBRATE, _LEARN))
    marks = np.array([True in labels[key] for key in keys], bool)
    array = pa.array([texts[key] for key in keys], pa.large_string())
    seeds = Seeds(array, marks, parts.astype(np.int8), conflicting, total - sum(map(len, labels.values())))
    _check_sizes(seeds, held_out, names)
    return seeds


def _check_sizes(seeds: Seeds, held_out: float, names: tuple[str, str]) -> None:
    shared = f"{seeds.conflicting:,} texts are in both the {names[0]} and the {names[1]} seeds"
    for name, label in zip(names, (True, False), strict=True):
        count = int(np.sum(seeds.labels == label))
        if not count and seeds.conflicting:
            raise DataError(f"{name} seeds: no documents remain: {shared}; use other documents, or another text field")
        smallest = min(int(np.sum((seeds.labels == label) & (seeds.parts == part))) for part in range(3))
        if smallest < MIN_HELD_OUT:
            raise DataError(
                f"{name} seeds: {count:,} different documents leave {smallest} in the smallest of the three parts "
                f"(training, calibration, held out), which needs {MIN_HELD_OUT}; add documents, or change --held-out "
                f"from {held_out}" + (f" ({shared})" if seeds.conflicting else "")
            )


def train_on_seeds(
    seeds: Seeds, features: Features, training: Training, high_precision: float, low_recall: float, what: str
) -> TrainingReport:
    """Train, calibrate, measure, choose thresholds.

    Args:
        what: the classifier tells, such as "quality"; stored.

    Raises:
        DataError: no threshold reaches `high_precision`.
    """
    learn, labels = seeds.part(_LEARN)
    model = train_classifier(learn.text_bytes, learn.text_offsets, labels, features, training)
    calibrate, labels = seeds.part(_CALIBRATE)
    slope, intercept = fit_platt(model.logits(calibrate.text_bytes, calibrate.text_offsets), labels)
    if slope <= 0:
        raise DataError("seeds: the classifier ranks unseen documents no better than chance; use other seeds")
    model = replace(model, slope=slope, intercept=intercept)
    unseen, labels = seeds.part(_HOLD_OUT)
    probabilities = model.probabilities(unseen.text_bytes, unseen.text_offsets)
    low, high = choose_thresholds(labels, probabilities, high_precision, low_recall)
    report = TrainingReport(
        model,
        area_under_curve(labels, probabilities),
        [figures_at(labels, probabilities, threshold) for threshold in THRESHOLDS_SHOWN],
        figures_at(labels, probabilities, low),
        figures_at(labels, probabilities, high),
        int(seeds.labels.sum()),
        int((~seeds.labels).sum()),
        len(labels),
    )
    rule = {"high_precision": high_precision, "low_recall": low_recall}
    return replace(report, classifier=replace(model, meta=_meta(report, rule, what)))


def _meta(report: TrainingReport, rule: dict[str, float], what: str) -> dict[str, Any]:
    return {
        "what": what,
        "documents": {
            "positive": report.num_positive,
            "negative": report.num_negative,
            "held_out": report.num_held_out,
        },
        "auc": round(report.auc, 6),
        "figures": [figures.to_json() for figures in report.figures],
        "buckets": {"low": report.low.to_json(), "high": report.high.to_json(), "rule": rule},
    }
