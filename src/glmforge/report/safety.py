"""Refusals of harmful and of harmless requests as a table: of a model, and before and after it was trained.

The two rates stand together, since either alone is easy to have. What the two models say to a request is paired: the
change has the interval and the test of paired answers (`evaluate.statistics`).
"""

from collections.abc import Sequence
from pathlib import Path

from glmforge.errors import DataError
from glmforge.evaluate.compare import pairs_of
from glmforge.evaluate.result import RESULT, Item, items_by_benchmark
from glmforge.evaluate.statistics import Estimate, compare, estimate
from glmforge.extras import needed_for
from glmforge.files import kind_of
from glmforge.report.page import Column, Table, make_table

BEFORE = "before"
"""The result of the model before, inside that of the model after."""

_KINDS = (("refusal", "harmful"), ("over_refusal", "harmless"))
_NOTE = (
    "Shares of requests that are refused, by rules. Harmful ones should be, harmless ones should not. Prompts of "
    "hh-rlhf were written to provoke: refusals of those are only an upper bound of over-refusal."
)


def safety_table(directory: Path, title: str = "Refusals") -> Table | None:
    """Of a result of `glmforge evaluate safety`, paired with the one before if there is one; None of anything else.

    Raises:
        DataError: a result is damaged.
        MissingPackageError: there are two, and scipy is not installed.
    """
    if kind_of(directory / RESULT, error=DataError) != "file":
        return None
    items, earlier = items_by_benchmark(directory), directory / BEFORE
    if not any(name in items for name, _ in _KINDS):
        return None
    before = items_by_benchmark(earlier) if kind_of(earlier / RESULT, error=DataError) == "file" else {}
    head = ["number", *(["before", "change", "95 % interval of it", "p"] if before else [])]
    head += ["refused", "95 % interval", "cut", "judge agrees"]
    rows = [
        row for name, kind in _KINDS if name in items for row in _rows(kind, items[name], before.get(name), len(head))
    ]
    return make_table(title, [Column("requests"), *(Column(one, number=True) for one in head)], rows, note=_NOTE)


def _rows(kind: str, items: Sequence[Item], before: Sequence[Item] | None, width: int) -> list[list[str]]:
    """Of all requests, then by category and language."""
    cut = sum(item.is_cut for item in items) / len(items)
    groups, rows = _groups(items), []
    for name, refused, agrees in rates(items):
        row = [f"  {name}" if name else kind, f"{refused.num_items:,}"]
        row += [] if width < 6 else _change(before or (), groups[name])
        row += [f"{refused.mean:.1%}", _interval(refused), "" if name else f"{cut:.1%}"]
        rows.append([*row, "" if agrees is None else f"{agrees.mean:.1%} ({_interval(agrees)})"])
    return rows


def _change(before: Sequence[Item], after: Sequence[Item]) -> list[str]:
    """The share before, the change in points with its interval, and p; of requests that both were asked."""
    pairs = pairs_of(before, after)
    if not pairs:
        return ["not the same requests", "", "", ""]
    with needed_for("comparing two results"):
        old, new = ([item.metrics.get("refused", 0.0) for item in some] for some in zip(*pairs, strict=True))
        found = compare(old, new)
    by, p_value = found.difference, "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"
    ends = "" if by.low != by.low else f"{100 * by.low:+.1f} to {100 * by.high:+.1f}"
    return [f"{sum(old) / len(old):.1%}", f"{100 * by.mean:+.1f}", ends, p_value]


def _interval(of: Estimate) -> str:
    return f"{of.low:.1%} to {of.high:.1%}"


def rates(items: Sequence[Item]) -> list[tuple[str, Estimate, Estimate | None]]:
    """Shares of refusals and of agreement with the judge, with Wilson's intervals: of all, by category and language."""
    found = []
    for name, some in _groups(items).items():
        agrees = [item.metrics["agrees"] for item in some if "agrees" in item.metrics]
        refused = estimate([item.metrics.get("refused", 0.0) for item in some])
        found.append((name, refused, estimate(agrees) if agrees else None))
    return found


def _groups(items: Sequence[Item]) -> dict[str, list[Item]]:
    """All under "", then those of each category and language."""
    groups = {"": list(items)}
    for item in items:
        for name in dict.fromkeys(filter(None, (item.subject, item.level))):
            groups.setdefault(name, []).append(item)
    return groups
