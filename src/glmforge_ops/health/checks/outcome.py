"""What a check says of a machine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """From best to worst, except that `SKIPPED` is no verdict: it never counts as passed."""

    PASS = "pass"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAIL = "fail"


@dataclass(frozen=True)
class Outcome:
    """The verdict of one check on one machine.

    Attributes:
        value: what was found, with its unit, short: "1.2 GB/s", "535.104.05", "4 of 8 GPUs".
        threshold: what it was held against: "at least 2 GB/s"; empty if nothing.
        mend: what to do about it; for a skipped check, what would let it run.
    """

    status: Status
    value: str
    threshold: str = ""
    mend: str = ""


def passed(value: str, threshold: str = "") -> Outcome:
    """As it should be."""
    return Outcome(Status.PASS, value, threshold)


def warning(value: str, threshold: str, mend: str) -> Outcome:
    """A job can run, but should not have to."""
    return Outcome(Status.WARNING, value, threshold, mend)


def failed(value: str, threshold: str, mend: str) -> Outcome:
    """A job would fail, hang or be slow because of it."""
    return Outcome(Status.FAIL, value, threshold, mend)


def skipped(reason: str, mend: str = "") -> Outcome:
    """Nothing was found out, and why."""
    return Outcome(Status.SKIPPED, reason, mend=mend)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Of several things that one check looked at (each GPU, each link) the worst; the first of equals."""
    order = list(Status)
    return max(outcomes, key=lambda outcome: order.index(outcome.status))


_SHOWN, _SHOWN_NAMES = 4, 8


def together(parts: Mapping[str, Outcome], well: str) -> Outcome:
    """One verdict over several things of a node, by their names: each GPU, each port.

    The worst decides, and all that are as bad are named. What is not known keeps the whole from passing.

    Args:
        well: the value if all of them passed.
    """
    if not parts:
        return skipped("there is none")
    worst_part = worst(parts.values())
    same = {name: outcome for name, outcome in parts.items() if outcome.status is worst_part.status}
    if worst_part.status is Status.PASS:
        return passed(well, worst_part.threshold)
    by_value: dict[str, list[str]] = {}
    for name, outcome in same.items():
        by_value.setdefault(outcome.value, []).append(name)
    told = [f"{_few(names, ', ', _SHOWN_NAMES)}: {value}" for value, names in by_value.items()]
    return Outcome(worst_part.status, _few(told, "; ", _SHOWN), worst_part.threshold, worst_part.mend)


def _few(items: list[str], between: str, most: int) -> str:
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return between.join(items[:most]) + rest
