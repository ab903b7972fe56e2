"""What a score says: intervals, paired differences, the smallest difference that can be seen, pass@k, majority.

Items of one benchmark are a sample of the questions that could have been asked (Miller, 2024, arXiv 2411.00640). Items
that share a context (a passage, a subject, a template) are not independent: their errors are summed by cluster, and
the interval is Student's with as many degrees of freedom as there are clusters less one. Single items scored 0 or 1
have Wilson's interval, which stays inside [0, 1] and is honest at 0 and 100 %.

Two models that answered the same items are compared item by item, which removes the items' own difficulty from the
error. Shapes: N items.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from glmforge.errors import DataError

LEVEL = 0.95
POWER = 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval at `level`.

    Attributes:
        stderr: standard error of the mean, by clusters where there are any; NaN for a single item or cluster.
        num_clusters: independent groups of items; the number of items where they are not grouped.
    """

    mean: float
    low: float
    high: float
    stderr: float
    num_items: int
    num_clusters: int
    level: float = LEVEL


@dataclass(frozen=True)
class Comparison:
    """The difference "new minus old" over the same items.

    Attributes:
        difference: with its interval.
        p_value: two-sided: McNemar's exact test where all scores are 0 or 1 and no items are clustered, otherwise
            Student's test of the differences; 1.0 where no item differs.
        test: which of the two.
        num_better, num_worse: items whose score rose and fell.
        detectable: the smallest true difference that this many items would show at `LEVEL` with probability `POWER`.
    """

    difference: Estimate
    p_value: float
    test: str
    num_better: int
    num_worse: int
    detectable: float

    @property
    def is_significant(self) -> bool:
        return self.p_value < 1 - self.difference.level


def estimate(values: ArrayLike, clusters: Sequence[object] | None = None, level: float = LEVEL) -> Estimate:
    """The mean of scores [N] and its interval.

    Args:
        clusters: [N], what an item shares with others; None or all different for independent items.

    Raises:
        DataError: there are no items, or a score is not finite.
    """
    scores_N = _scores(values)
    mean, num_items = float(scores_N.mean()), len(scores_N)
    groups_N = _groups(clusters, num_items)
    num_clusters = int(groups_N.max()) + 1
    if num_clusters == 1 and num_items > 1:  # one context for all: nothing is known of another one
        return Estimate(mean, math.nan, math.nan, math.nan, num_items, 1, level)
    stderr = _clustered_stderr(scores_N, groups_N)
    if num_clusters == num_items and _is_binary(scores_N):
        wilson = stats.binomtest(int(scores_N.sum()), num_items).proportion_ci(level, method="wilson")
        return Estimate(mean, float(wilson.low), float(wilson.high), stderr, num_items, num_clusters, level)
    if num_clusters == 1:
        return Estimate(mean, math.nan, math.nan, math.nan, num_items, 1, level)
    half = float(stats.t.ppf(0.5 + level / 2, num_clusters - 1)) * stderr
    low, high = mean - half, mean + half
    if scores_N.min() >= 0 and scores_N.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(mean, low, high, stderr, num_items, num_clusters, level)


def compare(
    old: ArrayLike, new: ArrayLike, clusters: Sequence[object] | None = None, level: float = LEVEL
) -> Comparison:
    """Compare scores [N] of the same items, old and new.

    Where all items change alike (above all: none does) the spread says nothing; the interval then holds what a share of
    items may do that is so rare that with probability `level` one would have been met.

    Raises:
        DataError: the numbers of items differ, there are none, or a score is not finite.
    """
    old_N, new_N = _scores(old), _scores(new)
    if len(old_N) != len(new_N):
        raise DataError(f"cannot compare {len(old_N):,} items with {len(new_N):,}; compare the same items")
    difference_N = new_N - old_N
    num_better, num_worse = int((difference_N > 0).sum()), int((difference_N < 0).sum())
    groups_N = _groups(clusters, len(old_N))
    num_clusters = int(groups_N.max()) + 1
    mean, stderr = float(difference_N.mean()), _clustered_stderr(difference_N, groups_N)
    freedom = max(num_clusters - 1, 1)
    half = float(stats.t.ppf(0.5 + level / 2, freedom)) * stderr
    low, high = mean - half, mean + half
    detectable = float(stats.norm.ppf(0.5 + level / 2) + stats.norm.ppf(POWER)) * stderr
    if stderr == 0 and max(old_N.max(), new_N.max()) <= 1 and min(old_N.min(), new_N.min()) >= 0:
        unseen = 1 - (1 - level) ** (1 / num_clusters)  # a share of items that may do otherwise, of which none was met
        reach = unseen * (1 + abs(mean))
        low, high = max(mean - reach, -1.0), min(mean + reach, 1.0)
        detectable = detectable_difference(num_clusters, unseen, level)
    found = Estimate(mean, low, high, stderr, len(old_N), num_clusters, level)
    if _is_binary(old_N) and _is_binary(new_N) and num_clusters == len(old_N):
        num_flips = num_better + num_worse
        p_value, test = (float(stats.binomtest(num_better, num_flips).pvalue) if num_flips else 1.0), "McNemar, exact"
    elif stderr > 0:
        p_value, test = float(2 * stats.t.sf(abs(mean) / stderr, freedom)), "Student, paired"
    else:
        p_value, test = (1.0 if mean == 0 or math.isnan(stderr) else 0.0), "Student, paired"
    return Comparison(found, p_value, test, num_better, num_worse, detectable)


def detectable_difference(num_items: int, flip_share: float, level: float = LEVEL, power: float = POWER) -> float:
    """The smallest difference in accuracy that `num_items` paired items show with `power`, where `flip_share` of the
    items change between right and wrong."""
    stderr = math.sqrt(flip_share / num_items)
    return float(stats.norm.ppf(0.5 + level / 2) + stats.norm.ppf(power)) * stderr


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """The chance that at least one of `k` samples is right, estimated without bias from `num_samples` of which
    `num_right` are (Chen et al., 2021, arXiv 2107.03374).

    Raises:
        DataError: `k` exceeds the number of samples.
    """
    if not 1 <= k <= num_samples:
        raise DataError(f"pass@{k} needs {k} samples of each item or more, not {num_samples}; raise --num-samples")
    num_wrong = num_samples - num_right
    if num_wrong < k:
        return 1.0
    return 1.0 - math.prod((num_wrong - i) / (num_samples - i) for i in range(k))


def majority(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> int | None:
    """The index of the first answer that most others agree with; None where there is no answer.

    Args:
        answers: of the samples of one item, None where a sample has none.
        same: whether two answers agree; it is taken to be an equivalence.
    """
    groups: list[list[int]] = []
    for index, answer in enumerate(answers):
        if answer is None:
            continue
        for group in groups:
            if same(str(answers[group[0]]), answer):
                group.append(index)
                break
        else:
            groups.append([index])
    return max(groups, key=len)[0] if groups else None  # of equal ones the first


def _scores(values: ArrayLike) -> NDArray[np.float64]:
    scores_N = np.asarray(values, dtype=np.float64)
    if scores_N.ndim != 1 or not len(scores_N):
        raise DataError("no items to estimate from")
    if not np.isfinite(scores_N).all():
        raise DataError(f"score of item {int(np.flatnonzero(~np.isfinite(scores_N))[0])} is not a finite number")
    return scores_N


def _is_binary(scores_N: NDArray[np.float64]) -> bool:
    return bool(np.isin(scores_N, (0.0, 1.0)).all())


def _groups(clusters: Sequence[object] | None, num_items: int) -> NDArray[np.int64]:
    """The number of its cluster for each item."""
    if clusters is None:
        return np.arange(num_items)
    if len(clusters) != num_items:
        raise DataError(f"{len(clusters):,} clusters for {num_items:,} items")
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)


def _clustered_stderr(scores_N: NDArray[np.float64], groups_N: NDArray[np.int64]) -> float:
    """Of the mean; residuals are summed within each cluster. NaN for a single cluster."""
    num_clusters = int(groups_N.max()) + 1
    if num_clusters < 2:
        return math.nan
    sums = np.bincount(groups_N, weights=scores_N - scores_N.mean(), minlength=num_clusters)
    return float(math.sqrt(num_clusters / (num_clusters - 1) * (sums**2).sum()) / len(scores_N))
