"""Two plans beside each other as a page that needs nothing else."""

from dataclasses import dataclass
from pathlib import Path

from glmforge.config import dump_config
from glmforge.observe.run import write_text
from glmforge.observe.units import format_count, format_seconds
from glmforge.plan.answers import Answer, answers, machine_words, parts_by_size
from glmforge.plan.comparison import compared_rows, differing_settings
from glmforge.plan.report import PlanReport
from glmforge.report.page import Column, Summary, Tile, check_suffix, make_table, page_template
from glmforge.report.plan_memory import MemoryBars, memory_bars


@dataclass(frozen=True)
class _Side:
    """One of the two plans."""

    name: str
    answers: list[Answer]
    parts: list[tuple[str, float, str]]
    memory: MemoryBars
    config: str


def write_comparison(first: PlanReport, second: PlanReport, out: Path) -> Path:
    """Write both to `out`, which it returns. Raises `ConfigError` for a suffix other than .html."""
    check_suffix(out, "--page")
    longest = max(*first.step.parts.values(), *second.step.parts.values())
    names = _names(first, second)
    sides = [_side(name, plan, longest) for name, plan in zip(names, (first, second), strict=True)]
    page = page_template("plan_comparison.html")
    write_text(out, page.render(summary=_summarize(first, second, names), sides=sides))
    return out


def _names(first: PlanReport, second: PlanReport) -> tuple[str, str]:
    names = first.run.name, second.run.name
    return names if names[0] != names[1] else ("first", "second")


def _side(name: str, plan: PlanReport, longest: float) -> _Side:
    parts = [
        (part, 100 * seconds / longest, format_seconds(seconds)) for part, seconds in parts_by_size(plan.step.parts)
    ]
    return _Side(name, answers(plan), parts, memory_bars(plan), dump_config(plan.run))


def _summarize(first: PlanReport, second: PlanReport, names: tuple[str, str]) -> Summary:
    faster = second.step.tokens_per_second / first.step.tokens_per_second
    settings = make_table(
        "Settings that differ", [Column("setting"), *map(Column, names)], differing_settings(first, second)
    )
    numbers = [Column(name, number=True) for name in (*names, "change")]
    figures = make_table("Result", [Column(""), *numbers], compared_rows(first, second))
    return Summary(
        name=f"{first.run.name} and {second.run.name}" if first.run.name != second.run.name else first.run.name,
        lead=f"Phase {first.config.phases[0].name} on {machine_words(first)}, planned twice",
        tiles=[
            Tile(f"Step, {names[0]}", format_seconds(first.step.seconds), f"{format_count(first.step.tokens)} tokens"),
            Tile(
                f"Step, {names[1]}", format_seconds(second.step.seconds), f"{format_count(second.step.tokens)} tokens"
            ),
            Tile("Tokens per second", f"{faster:.2f} x", f"of {names[1]}, relative to {names[0]}"),
        ],
        tables=[settings, figures],
    )
