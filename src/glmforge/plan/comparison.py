"""Two plans beside each other: which settings differ, and what comes of it."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from glmforge.observe.units import format_count, format_duration, format_seconds
from glmforge.plan.answers import dollar_words, layout_words
from glmforge.plan.report import PlanReport, as_json

_OF_NO_INTEREST = ("name", "output_dir")
"""Settings in which any two runs differ."""


class ComparedRow(NamedTuple):
    """A figure of both plans in words, and the second as against the first."""

    what: str
    first: str
    second: str
    change: str


def differing_settings(first: PlanReport, second: PlanReport) -> list[tuple[str, str, str]]:
    """Key and both values, of the planned phases; "-" where a run has no such key."""
    before, after = _settings(first), _settings(second)
    keys = [*before, *(key for key in after if key not in before)]
    pairs = ((key, before.get(key, "-"), after.get(key, "-")) for key in keys)
    return [(key, one, other) for key, one, other in pairs if one != other]


def compared_rows(first: PlanReport, second: PlanReport) -> list[ComparedRow]:
    """The figures of both; a part of the step that takes no time in either is omitted."""
    rows = [
        ComparedRow("layout", layout_words(first.layout), layout_words(second.layout), ""),
        _row("tokens per second", first.step.tokens_per_second, second.step.tokens_per_second, format_count),
        _row("MFU", first.step.utilisation, second.step.utilisation, lambda share: f"{share:.1%}"),
        _row("phase", first.phase_seconds, second.phase_seconds, format_duration),
        *_costs(first, second),
    ]
    peaks = first.memory.estimate.peak, second.memory.estimate.peak
    rows.append(_row("peak memory", *peaks, lambda size: f"{size / 1e9:,.1f} GB"))
    rows.append(_row("step", first.step.seconds, second.step.seconds, format_seconds))
    names = dict.fromkeys([*first.step.parts, *second.step.parts])
    for name in sorted(names, key=lambda name: -first.step.parts.get(name, 0.0)):
        seconds = first.step.parts.get(name, 0.0), second.step.parts.get(name, 0.0)
        if any(seconds):
            rows.append(_row(f"of it {name}", *seconds, format_seconds))
    return rows


def _costs(first: PlanReport, second: PlanReport) -> Iterator[ComparedRow]:
    """Of the whole run, if both have a time for the same phases of it."""
    before, after = _served(first), _served(second)
    if before != after or not before:
        numbers = (f"{len(before)} of {len(first.cost.phases)}", f"{len(after)} of {len(second.cost.phases)}")
        yield ComparedRow("phases with a time", *numbers, change="")
        return
    yield _row("whole run", first.cost.seconds, second.cost.seconds, format_duration)
    yield _row("GPU-hours", first.cost.gpu_hours, second.cost.gpu_hours, lambda hours: f"{hours:,.0f}")
    yield _row("dollars", sum(first.cost.dollars.values()), sum(second.cost.dollars.values()), dollar_words)


def _served(plan: PlanReport) -> set[str]:
    return {phase.time.name for phase in plan.cost.phases if phase.seconds is not None}


def comparison_as_json(first: PlanReport, second: PlanReport) -> dict[str, Any]:
    """Both plans whole, and the settings in which they differ."""
    settings = {key: [one, other] for key, one, other in differing_settings(first, second)}
    return {"plans": [as_json(first), as_json(second)], "settings": settings}


def _row(what: str, first: float, second: float, words: Any) -> ComparedRow:
    change = f"{second / first - 1:+.1%}" if first else ""
    return ComparedRow(what, words(first), words(second), change)


def _settings(report: PlanReport) -> dict[str, str]:
    """Dotted keys of the planned run; its one phase is `phase`."""
    dumped = report.config.model_dump(mode="json")
    dumped["phase"] = dumped.pop("phases")[0]
    return dict(_flat({key: value for key, value in dumped.items() if key not in _OF_NO_INTEREST}))


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
