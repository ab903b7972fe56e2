"""Two results item by item: the difference with its interval, the items that flipped, what could have been seen.

Items are paired by the digest of their prompts. A benchmark whose prompts or data differ between the results is
compared on the items that both have, and says so; with none in common it is not compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import DataError
from glmforge.evaluate.result import Item, Score, read_items, read_result
from glmforge.evaluate.statistics import Comparison, compare


@dataclass(frozen=True)
class Pair:
    """One item in both results."""

    old: Item
    new: Item

    @property
    def change(self) -> float:
        return self.new.score - self.old.score


@dataclass(frozen=True)
class Compared:
    """A benchmark in two results.

    Attributes:
        benchmark: its name.
        comparison: of the items that both have.
        better, worse: the pairs that changed, largest changes first.
        old_score, new_score: over these items.
        old, new: the rows of the two results, over all of their items: finished scores and shares of cut replies.
        same_questions: both results have the same prompts and data.
    """

    benchmark: str
    comparison: Comparison
    better: tuple[Pair, ...]
    worse: tuple[Pair, ...]
    old_score: float
    new_score: float
    old: Score
    new: Score
    same_questions: bool

    @property
    def verdict(self) -> str:
        """In a word: better, worse, or no difference that these items can show."""
        if not self.comparison.is_significant:
            return "no difference shown"
        return "better" if self.comparison.difference.mean > 0 else "worse"


def compare_results(old: Path, new: Path) -> list[Compared]:
    """Compare the benchmarks that both results have, in the order of the new one.

    Raises:
        DataError: a result is missing or damaged, or they have no item in common.
    """
    scores = {score.benchmark: score for score in read_result(old).scores}
    before, after = _by_benchmark(old), _by_benchmark(new)
    found = []
    for score in read_result(new).scores:
        name = score.benchmark
        pairs = _pairs(before.get(name, []), after.get(name, []))
        if pairs and name in scores:
            found.append(_compared(pairs, scores[name], score))
    if not found:
        raise DataError(
            f"{old} and {new} have no item in common: evaluate both on the same benchmarks in the same form"
        )
    return found


def _compared(pairs: Sequence[Pair], old: Score, new: Score) -> Compared:
    clusters = [pair.new.cluster or f"item {place}" for place, pair in enumerate(pairs)]
    changed = sorted((pair for pair in pairs if pair.change), key=lambda pair: -abs(pair.change))
    return Compared(
        new.benchmark,
        compare([pair.old.score for pair in pairs], [pair.new.score for pair in pairs], clusters),
        tuple(pair for pair in changed if pair.change > 0),
        tuple(pair for pair in changed if pair.change < 0),
        sum(pair.old.score for pair in pairs) / len(pairs),
        sum(pair.new.score for pair in pairs) / len(pairs),
        old,
        new,
        old.fingerprint == new.fingerprint,
    )


def _by_benchmark(directory: Path) -> dict[str, list[Item]]:
    items: dict[str, list[Item]] = {}
    for item in read_items(directory):
        items.setdefault(item.benchmark, []).append(item)
    return items


def _pairs(old: Sequence[Item], new: Sequence[Item]) -> list[Pair]:
    """Items with the same prompts; of equal prompts the first with the first."""
    waiting: dict[str, list[Item]] = {}
    for item in reversed(old):
        waiting.setdefault(item.digest, []).append(item)
    return [Pair(waiting[item.digest].pop(), item) for item in new if waiting.get(item.digest)]
