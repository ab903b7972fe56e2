"""What a score says: intervals, paired differences, the smallest difference that can be seen, pass@k, majority.

Items are a sample of the questions that could have been asked (Miller, 2024, arXiv 2411.00640). Items that share a
context (a passage, a template) are not independent: their errors are summed by cluster, and the interval is Student's
with one degree of freedom less than there are clusters. Independent items scored 0 or 1 have Wilson's interval. Two
models are compared item by item, which removes the items' own difficulty from the error.

Where nothing varies, the spread says nothing. The interval then allows for a share of deviating items that is so small
that with probability 1 - `LEVEL` none of them is in the sample.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glmforge.errors import DataError

LEVEL, POWER = 0.95, 0.8
_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
_STDERRS = _Z + NormalDist().inv_cdf(POWER)
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval at `LEVEL`; for a single cluster standard error and interval are NaN."""

    mean: float
    low: float
    high: float
    stderr: float
    num_items: int
    num_clusters: int  # independent groups of items; the number of items where they are not grouped


@dataclass(frozen=True)
class Comparison:
    """The difference "new minus old" over the same items."""

    difference: Estimate
    p_value: float  # two-sided
    test: str
    num_better: int
    num_worse: int
    detectable: float  # the smallest true difference that this many items show at `LEVEL` with probability `POWER`

    @property
    def is_significant(self) -> bool:
        return self.p_value < 1 - LEVEL


def estimate(values: ArrayLike, clusters: Sequence[object] | None = None) -> Estimate:
    """The mean of scores [N] and its interval.

    Args:
        clusters: [N], what an item shares with others; None or all different for independent items.

    Raises:
        DataError: there are no items, or a score is not finite.
    """
    scores_N = _scores(values)
    found = _with_interval(scores_N, clusters, (0.0, 1.0) if _are_shares(scores_N) else (-math.inf, math.inf))
    if found.num_clusters == found.num_items and _is_binary(scores_N):
        low, high = wilson(float(scores_N.mean()), len(scores_N))
        return replace(found, low=low, high=high)
    return found


def wilson(share: float, number: int) -> tuple[float, float]:
    """Wilson's interval, at `LEVEL`, of a share of `number` independent items."""
    centre = (share + _Z * _Z / (2 * number)) / (1 + _Z * _Z / number)
    half = _Z * math.sqrt(share * (1 - share) / number + _Z * _Z / (4 * number * number)) / (1 + _Z * _Z / number)
    return max(0.0, centre - half), min(1.0, centre + half)


def compare(old: ArrayLike, new: ArrayLike, clusters: Sequence[object] | None = None) -> Comparison:
    """Compare scores [N] of the same items, old and new.

    Scores of 0 or 1 of independent items have McNemar's exact test, others Student's test of the differences, and a
    sign test where all differences are equal.

    Raises:
        DataError: the numbers of items differ, there are none, or a score is not finite.
    """
    old_N, new_N = _scores(old), _scores(new)
    if len(old_N) != len(new_N):
        raise DataError(f"cannot compare {len(old_N):,} items with {len(new_N):,}; compare the same items")
    difference_N = new_N - old_N
    are_shares = _are_shares(old_N) and _are_shares(new_N)
    found = _with_interval(difference_N, clusters, (-1.0, 1.0) if are_shares else (-math.inf, math.inf))
    num_better, num_worse = int((difference_N > 0).sum()), int((difference_N < 0).sum())
    if _is_binary(old_N) and _is_binary(new_N) and found.num_clusters == found.num_items:
        test, p_value = "McNemar, exact", _sign_test(num_better, num_better + num_worse)
    elif found.stderr > 0:
        t = abs(found.mean) / found.stderr
        from scipy import stats

        test, p_value = "Student, paired", float(2 * stats.t.sf(t, found.num_clusters - 1))
    else:
        test, p_value = "sign, exact", _sign_test(0, found.num_clusters if found.mean else 0)
    detectable = _STDERRS * found.stderr
    if found.stderr == 0:
        detectable = detectable_difference(found.num_clusters, _unseen(found.num_clusters)) if are_shares else math.nan
    return Comparison(found, p_value, test, num_better, num_worse, min(detectable, 1.0) if are_shares else detectable)


def detectable_difference(num_items: int, flip_share: float) -> float:
    """`Comparison.detectable` of `num_items` scored 0 or 1, of which `flip_share` change between right and wrong."""
    return _STDERRS * math.sqrt(flip_share / num_items)


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """The chance that at least one of `k` samples is right, estimated without bias from `num_samples` of which
    `num_right` are (Chen et al., 2021, arXiv 2107.03374).

    Raises:
        DataError: `k` exceeds the number of samples.
    """
    if not 1 <= k <= num_samples:
        raise DataError(f"pass@{k} needs {k} samples of each item or more, not {num_samples}; raise --num-samples")
    return 1 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def majority(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> int | None:
    """The index of the first answer that most others agree with; None where all are None. `same` is an equivalence."""
    known = [(index, answer) for index, answer in enumerate(answers) if answer is not None]
    firsts = [next(index for index, other in known if same(other, answer)) for _, answer in known]
    return max(firsts, key=firsts.count, default=None)  # of equal ones the first


def _with_interval(
    values_N: NDArray[np.float64], clusters: Sequence[object] | None, bounds: tuple[float, float]
) -> Estimate:
    """The mean with Student's interval inside `bounds`; errors are summed by cluster."""
    num_items, mean = len(values_N), float(values_N.mean())
    groups_N = np.arange(num_items)
    if clusters is not None:
        groups_N = np.unique(np.array(clusters, dtype=object), return_inverse=True)[1]
    num_clusters = int(groups_N.max()) + 1
    if num_clusters == 1:  # one context for all: nothing is known of another one
        return Estimate(mean, math.nan, math.nan, math.nan, num_items, 1)
    sums = np.bincount(groups_N, weights=values_N - mean)
    stderr = math.sqrt(num_clusters / (num_clusters - 1) * float((sums**2).sum())) / num_items
    stderr = 0.0 if stderr <= _ROUNDING * float(np.abs(values_N).max()) else stderr
    from scipy import stats  # of an extra: single items scored 0 or 1 need none of it

    below = above = float(stats.t.ppf(0.5 + LEVEL / 2, num_clusters - 1)) * stderr
    low, high = bounds
    if stderr == 0:  # without bounds nothing is known of unseen items: NaN
        unseen = _unseen(num_clusters) if math.isfinite(low) else math.nan
        below, above = unseen * (mean - low), unseen * (high - mean)
    return Estimate(mean, max(mean - below, low), min(mean + above, high), stderr, num_items, num_clusters)


def _sign_test(num_better: int, num_changed: int) -> float:
    from scipy import stats

    return float(stats.binomtest(num_better, num_changed).pvalue) if num_changed else 1.0


def _unseen(num_clusters: int) -> float:
    """The share of deviating items of which this many clusters have none with probability 1 - `LEVEL`."""
    return 1 - float((1 - LEVEL) ** (1 / num_clusters))


def _scores(values: ArrayLike) -> NDArray[np.float64]:
    scores_N = np.asarray(values, dtype=np.float64)
    if scores_N.ndim != 1 or not len(scores_N):
        raise DataError("no items to estimate from")
    if not np.isfinite(scores_N).all():
        raise DataError(f"score of item {int(np.flatnonzero(~np.isfinite(scores_N))[0])} is not a finite number")
    return scores_N


def _are_shares(scores_N: NDArray[np.float64]) -> bool:
    return bool(scores_N.min() >= 0 and scores_N.max() <= 1)


def _is_binary(scores_N: NDArray[np.float64]) -> bool:
    return bool(np.isin(scores_N, (0.0, 1.0)).all())
