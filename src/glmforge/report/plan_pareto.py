"""The layouts that a search found: how long a step takes against what it needs."""

import matplotlib
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from glmforge.observe.units import format_seconds
from glmforge.plan.report import PlanReport
from glmforge.plan.search.search import Candidate
from glmforge.report.canvas import INK, MUTED, SERIES, STYLE, Figure, draw_legend, to_svg

_MOST_POINTS = 1500


def draw_pareto(report: PlanReport) -> Figure | None:
    """Time against memory; None for a plan without a search."""
    found = report.search
    if found is None:
        return None
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(10.6, 3.9), layout="constrained")
        axes = canvas.add_subplot()
        others = found.ranked[:: len(found.ranked) // _MOST_POINTS + 1]
        axes.plot(*_places(others), linestyle="none", marker="o", markersize=2.5, color=MUTED, alpha=0.45, label="fits")
        best = found.pareto
        axes.plot(*_places(best), marker="o", markersize=4.5, color=SERIES[0], label="Pareto front")
        place = [report.memory.estimate.peak / 1e9], [report.step.seconds]
        axes.plot(*place, linestyle="none", marker="D", color=SERIES[1], label="this plan")
        axes.axvline(found.memory_limit / 1e9, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
        axes.set(xlabel="peak memory of the fullest rank, GB", ylabel="step")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.03, y=0.08)
        draw_legend(axes)
        svg = to_svg(canvas, "pareto")
    caption = f"{found.num_fitting:,} of {found.num_layouts:,} layouts fit; the dashed line is the available memory."
    return Figure("Layouts: time against memory", caption, svg, wide=True)


def _places(candidates: tuple[Candidate, ...]) -> tuple[list[float], list[float]]:
    return [candidate.memory.peak / 1e9 for candidate in candidates], [c.time.seconds for c in candidates]
