"""Refusals of harmful and of harmless requests as a table: together, since either rate alone is easy to have."""

from collections.abc import Sequence
from pathlib import Path

from glmforge.errors import DataError
from glmforge.evaluate.result import RESULT, Item, items_by_benchmark
from glmforge.evaluate.statistics import Estimate, estimate
from glmforge.files import kind_of
from glmforge.report.page import Column, Table, make_table

SAFETY, BEFORE = "safety", "before"
"""Where a run has a result, and where a result has that of the model before."""

_KINDS = (("refusal", "harmful"), ("over_refusal", "harmless"))
_COLUMNS = ("number", "before", "refused", "95 % interval", "cut", "judge agrees")
_NOTE = (
    "Shares of requests that are refused, by rules. Harmful ones should be, harmless ones should not. Prompts of "
    "hh-rlhf were written to provoke: refusals of those are only an upper bound of over-refusal."
)


def safety_table(directory: Path) -> Table | None:
    """Of a result of `glmforge evaluate safety`, beside the one before if there is one; None of anything else. Raises
    `DataError` for a damaged one."""
    items, before = (
        items_by_benchmark(one) if kind_of(one / RESULT, error=DataError) == "file" else {}
        for one in (directory, directory / BEFORE)
    )
    rows = [row for name, kind in _KINDS for row in _rows(kind, items.get(name, ()), before.get(name, ()))]
    columns = [Column("requests"), *(Column(one, number=True) for one in _COLUMNS)]
    return make_table("Refusals", columns, rows, note=_NOTE) if rows else None


def _rows(kind: str, items: Sequence[Item], before: Sequence[Item]) -> list[list[str]]:
    """Of all requests, then by category and language."""
    earlier = {name: f"{refused.mean:.1%}" for name, refused, _ in rates(before)}
    rows = []
    for name, refused, agrees in rates(items):
        cut = "" if name else f"{sum(item.is_cut for item in items) / len(items):.1%}"
        judged = "" if agrees is None else f"{agrees.mean:.1%} ({_interval(agrees)})"
        head = f"  {name}" if name else kind, f"{refused.num_items:,}", earlier.get(name, "")
        rows.append([*head, f"{refused.mean:.1%}", _interval(refused), cut, judged])
    return rows


def _interval(of: Estimate) -> str:
    return f"{of.low:.1%} to {of.high:.1%}"


def rates(items: Sequence[Item]) -> list[tuple[str, Estimate, Estimate | None]]:
    """Shares of refusals and of agreement with the judge, with Wilson's intervals: of all, by category and language."""
    groups = {"": list(items)} if items else {}
    for item in items:
        for name in dict.fromkeys(filter(None, (item.subject, item.level))):
            groups.setdefault(name, []).append(item)
    found = []
    for name, some in groups.items():
        agrees = [item.metrics["agrees"] for item in some if "agrees" in item.metrics]
        refused = estimate([item.metrics.get("refused", 0.0) for item in some])
        found.append((name, refused, estimate(agrees) if agrees else None))
    return found
