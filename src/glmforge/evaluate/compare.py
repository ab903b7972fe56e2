"""Two results item by item: the difference with its interval, the items that flipped, and why.

Items are paired by the digest of their prompts. Where prompts or data differ between the results, only items that both
have are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from glmforge.errors import DataError
from glmforge.evaluate.failures import reasons
from glmforge.evaluate.result import Item, Score, items_by_benchmark, read_result
from glmforge.evaluate.statistics import Comparison, compare
from glmforge.observe.units import counted


class Pair(NamedTuple):
    """One item in both results."""

    old: Item
    new: Item

    @property
    def change(self) -> float:
        return self.new.score - self.old.score


@dataclass(frozen=True)
class Compared:
    """A benchmark in two results, over the items that both have."""

    benchmark: str
    comparison: Comparison
    better: tuple[Pair, ...]  # largest changes first
    worse: tuple[Pair, ...]
    old_score: float
    new_score: float
    old: Score  # over all items of its result, as the new one
    new: Score
    same_questions: bool  # both results have the same prompts and data

    @property
    def verdict(self) -> str:
        if not self.comparison.is_significant:
            return "no difference shown"
        return "better" if self.comparison.difference.mean > 0 else "worse"

    def explained(self) -> list[str]:
        """Why items fell and rose: kinds of failure, and the subjects that lost most."""
        found = [] if self.same_questions else ["the questions of the results differ: only common ones are compared"]
        for items, verb, when in (
            ([pair.new for pair in self.worse], "fell", "new"),
            ([pair.old for pair in self.better], "rose", "old"),
        ):
            if kinds := reasons(items):
                words = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
                found.append(f"{counted(len(items), 'item')} {verb}; their failures in the {when} result: {words}")
        lost: dict[str, float] = {}
        for pair in (*self.worse, *self.better):
            lost[pair.new.subject] = lost.get(pair.new.subject, 0.0) + pair.change
        worst = sorted((change, name) for name, change in lost.items() if name and change < 0)[:3]
        names = ", ".join(f"{name} ({change:+.1f} items)" for change, name in worst)
        return [*found, f"most is lost in {names}"] if worst else found


def compare_results(old: Path, new: Path) -> list[Compared]:
    """Compare the benchmarks that have scores and common items in both results, in the order of the new one.

    Raises:
        DataError: a result is missing or damaged, or there are no such benchmarks.
    """
    rows, new_rows = ({row.benchmark: row for row in read_result(path).scores} for path in (old, new))
    before, after = items_by_benchmark(old), items_by_benchmark(new)
    found = []
    for name, row in new_rows.items():
        earlier, pairs = rows.get(name), _pairs(before.get(name, []), after.get(name, []))
        if pairs and earlier and earlier.score is not None and row.score is not None:
            found.append(_compared(pairs, earlier, row))
    if not found:
        raise DataError(
            f"{old} and {new} have no scored item in common: evaluate both on the same benchmarks in the same form"
        )
    return found


def not_compared(old: Path, new: Path, found: Sequence[Compared]) -> list[str]:
    """The benchmarks of either result that `compare_results` left out, and why."""
    why: dict[str, str] = {}
    for path, other in ((old, new), (new, old)):
        others = {row.benchmark for row in read_result(other).scores}
        for row in read_result(path).scores:
            if row.benchmark not in others:
                why[row.benchmark] = f"{other} does not have it"
            elif row.score is None:
                why[row.benchmark] = f"{path} has no score"
            else:
                why.setdefault(row.benchmark, "no item in common")
    there = {one.benchmark for one in found}
    return [f"{name}: not compared: {reason}" for name, reason in why.items() if name not in there]


def _compared(pairs: Sequence[Pair], old: Score, new: Score) -> Compared:
    before, after = [pair.old.score for pair in pairs], [pair.new.score for pair in pairs]
    clusters = [pair.new.cluster or f"item {place}" for place, pair in enumerate(pairs)]
    changed = sorted((pair for pair in pairs if pair.change), key=lambda pair: -abs(pair.change))
    return Compared(
        benchmark=new.benchmark,
        comparison=compare(before, after, clusters),
        better=tuple(pair for pair in changed if pair.change > 0),
        worse=tuple(pair for pair in changed if pair.change < 0),
        old_score=sum(before) / len(pairs),
        new_score=sum(after) / len(pairs),
        old=old,
        new=new,
        same_questions=old.fingerprint == new.fingerprint,
    )


def _pairs(old: Sequence[Item], new: Sequence[Item]) -> list[Pair]:
    """Items with the same prompts; of equal prompts the first with the first."""
    waiting: dict[str, list[Item]] = {}
    for item in reversed(old):
        waiting.setdefault(item.digest, []).append(item)
    return [Pair(waiting[item.digest].pop(), item) for item in new if waiting.get(item.digest)]
