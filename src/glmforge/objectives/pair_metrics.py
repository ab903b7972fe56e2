"""Measures of a model that compares answers: how often it is right, how sure it is, and whether length decides.

All of it comes from sums over pairs, in float64, so that it is the same on any layout and may be summed over steps. The
probability that the chosen answer is the better one is sigmoid(chosen - rejected), by Bradley and Terry. Calibration:
pairs are put into ten bins by how sure the model is of its own choice (0.5 to 1); the expected calibration error is the
mean distance between that and how often it is right (Guo et al., 2017). A tie is half right.

Shapes: P pairs, S sources.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glmforge.backend.objective import MetricSum
from glmforge.observe.metric_table import Metric

NUM_BINS = 10

PAIR_METRICS = (
    Metric("pair_loss", "nats/pair", "preferences", "mean -log of the probability that the chosen answer is better"),
    Metric(
        "pair_accuracy",
        "fraction",
        "preferences",
        "pairs whose chosen answer has the higher score (dpo: implicit reward), ties counted half",
        labels=("source",),
    ),
    Metric("score_chosen", "1", "preferences", "mean score (dpo: implicit reward) of the chosen answers"),
    Metric("score_rejected", "1", "preferences", "the same of the rejected answers"),
    Metric("score_brier", "1", "preferences", "mean squared error of the predicted probability; 0.25 knows nothing"),
    Metric(
        "score_calibration_error",
        "fraction",
        "preferences",
        "expected calibration error, over ten bins: how far certainty and accuracy lie apart",
    ),
    Metric(
        "score_length_correlation",
        "1",
        "preferences",
        "correlation of the difference of the scores with that of the answers' lengths",
    ),
)


def pair_metric_sums(num_sources: int) -> tuple[MetricSum, ...]:
    """What `pair_sums` gives, as an objective declares it."""
    lengths = {"pairs": num_sources, "right": num_sources, "scores": 2, "brier": 1, "bins": 3 * NUM_BINS, "moments": 6}
    return tuple(MetricSum(f"pair_{name}", length) for name, length in lengths.items())


def pair_sums(
    scores_P2: Tensor, lengths_P2: Tensor, source_P: Tensor, weight_P: Tensor, num_sources: int
) -> dict[str, Tensor]:
    """Float64 sums over pairs, by the names of `pair_metric_sums`; `weight_P` is 0 for filling."""
    weight_P, scores_P2 = weight_P.double(), scores_P2.double()
    gap_P, longer_P = scores_P2[:, 0] - scores_P2[:, 1], (lengths_P2[:, 0] - lengths_P2[:, 1]).double()
    right_P = ((gap_P > 0).double() + (gap_P >= 0).double()) / 2
    sure_P = torch.sigmoid(gap_P.abs())
    bin_P = ((sure_P - 0.5) * 2 * NUM_BINS).long().clamp(0, NUM_BINS - 1)
    # A tie is half right, whichever answer it would choose.
    of_bins = [
        weight_P.new_zeros(NUM_BINS).index_add_(0, bin_P, weight_P * x) for x in (1.0 + 0 * sure_P, sure_P, right_P)
    ]
    moments = torch.stack((torch.ones_like(gap_P), gap_P, longer_P, gap_P**2, longer_P**2, gap_P * longer_P))
    found = {
        "pairs": weight_P.new_zeros(num_sources).index_add_(0, source_P, weight_P),
        "right": weight_P.new_zeros(num_sources).index_add_(0, source_P, weight_P * right_P),
        "scores": (scores_P2 * weight_P[:, None]).sum(0),
        "brier": (weight_P * torch.sigmoid(-gap_P) ** 2).sum(0, keepdim=True),
        "bins": torch.cat(of_bins),
        "moments": (moments * weight_P).sum(1),
    }
    return {f"pair_{name}": values for name, values in found.items()}


def pair_metric_values(sums: Mapping[str, Tensor], sources: Sequence[str]) -> dict[str, Any]:
    """Metrics of `PAIR_METRICS` from sums; empty without a pair."""
    pairs_S, right_S = sums["pair_pairs"].tolist(), sums["pair_right"].tolist()
    if not (num_pairs := sum(pairs_S)):
        return {}
    count_K, sure_K, right_K = sums["pair_bins"].view(3, NUM_BINS)
    chosen, rejected = (sums["pair_scores"] / num_pairs).tolist()
    return {
        "pair_accuracy": {
            name: right / pairs for name, pairs, right in zip(sources, pairs_S, right_S, strict=True) if pairs
        },
        "score_chosen": chosen,
        "score_rejected": rejected,
        "score_brier": float(sums["pair_brier"]) / num_pairs,
        "score_calibration_error": float((sure_K - right_K).abs().sum() / count_K.sum()),
        "score_length_correlation": _correlation(*sums["pair_moments"].tolist()),
    }


def _correlation(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float | None:
    """Pearson's, from sums; None where one of the two does not vary."""
    spread_x, spread_y = xx - x * x / n, yy - y * y / n
    if min(spread_x, spread_y) <= 1e-12 * max(1.0, xx, yy):
        return None
    return (xy - x * y / n) / math.sqrt(spread_x * spread_y)
