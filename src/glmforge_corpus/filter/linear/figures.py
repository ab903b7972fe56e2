"""How good a score with two labels is, and where to cut it: figures of held-out documents."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from glmforge.errors import DataError

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
            f"(best: {precision[best]:.3f} at {thresholds[best]:.3f}): lower it, or give clearer or more seeds"
        )
    below = float(thresholds[np.flatnonzero(recall >= low_recall)[0]])
    low, high = sorted((below, float(thresholds[reached[-1]])))
    return low, high
