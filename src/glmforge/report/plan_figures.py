"""Drawings of a plan: the passes of a pipelined step rank by rank, and the layouts that a search found."""

import re
from collections import defaultdict
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from glmforge.observe.units import format_seconds
from glmforge.plan.report import PlanReport
from glmforge.plan.search.search import Candidate
from glmforge.plan.time.simulate import Span
from glmforge.report.canvas import INK, MUTED, SERIES, Figure, draw_legend, drawing

_MOST_PASSES = 90
"""Of a rank on a drawing: of longer steps the beginning and the end are drawn."""
_COLORS = {
    "forward": (SERIES[0], 0.95),
    "backward": (SERIES[1], 0.95),
    "input": (SERIES[1], 0.95),
    "weight": (SERIES[1], 0.5),
    "reduce": (SERIES[2], 0.95),
    "update": (SERIES[3], 0.95),
    "exchange": (SERIES[3], 0.6),
    "checkpoint": (SERIES[3], 0.3),
}
_WORDS = {"input": "backward, activations", "weight": "backward, weights"}
_LATER_STAGE = 0.6
"""Opacity of passes through a rank's second stage and those after it, as a share of the first's."""
_GAP = 0.12
_MOST_POINTS = 1500
"""Layouts that are drawn besides the best."""
_READABLE = 0.012
"""Share of the drawing's width that the number of a micro-batch needs."""


def draw_pipeline(timeline: Sequence[Span]) -> Figure | None:
    """The passes of a step, a row for each pipeline rank; None without a pipeline."""
    num_ranks = 1 + max((span.pp_rank for span in timeline), default=0)
    if num_ranks == 1:
        return None
    windows = _windows(timeline, num_ranks)
    with drawing("pipeline", 0.23 * num_ranks + 1.15) as plot:
        panels = plot.canvas.subplots(1, len(windows), sharey=True, squeeze=False)[0]
        for axes, window in zip(panels, windows, strict=True):
            _draw_rows(axes, timeline, num_ranks, window)
        if len(windows) == 1:
            _number(panels[0], timeline)
        panels[0].set(ylabel="pipeline rank", ylim=(num_ranks, 0))
        panels[0].set_yticks([rank + 0.5 for rank in range(num_ranks)], [str(rank) for rank in range(num_ranks)])
        _draw_key(panels[-1], timeline)
    svg = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", plot.svg)
    caption = "Predicted work of each pipeline rank in a step; gaps are waiting time."
    if any(_is_later(span, num_ranks) for span in timeline):
        caption += " A rank's second stage is paler."
    if len(windows) > 1:
        caption += " Beginning and end of the step; in between the pipeline is full."
    return Figure("A step of the pipeline", caption, svg, wide=True)


def _windows(timeline: Sequence[Span], num_ranks: int) -> list[tuple[float, float]]:
    """From when to when is drawn: the whole step, or so much of its beginning and its end as can be read."""
    stop = max(span.stop for span in timeline)
    per_rank = len(timeline) / num_ranks
    if per_rank <= _MOST_PASSES:
        return [(0.0, stop)]
    width = stop * _MOST_PASSES / 2 / per_rank
    return [(0.0, width), (stop - width, stop)]


def _is_later(span: Span, num_ranks: int) -> bool:
    return span.task in ("forward", "backward", "input", "weight") and span.stage >= num_ranks


def _draw_rows(axes: Axes, timeline: Sequence[Span], num_ranks: int, window: tuple[float, float]) -> None:
    start, stop = window
    shown = [span for span in timeline if span.stop > start and span.start < stop]
    boxes: dict[tuple[str, bool], list[Path]] = defaultdict(list)
    for span in shown:
        boxes[span.task, _is_later(span, num_ranks)].append(_box(span))
    for (task, is_later), paths in boxes.items():
        color, opacity = _COLORS[task]
        opacity *= _LATER_STAGE if is_later else 1.0
        axes.add_patch(PathPatch(Path.make_compound_path(*paths), facecolor=color, alpha=opacity, linewidth=0))
    axes.set_xlim(start, stop)
    axes.xaxis.set_major_locator(MaxNLocator(8 if start == 0 else 5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.grid(visible=False)


def _draw_key(axes: Axes, timeline: Sequence[Span]) -> None:
    drawn = {span.task for span in timeline}
    handles = [
        Patch(color=color, alpha=opacity, linewidth=0, label=_WORDS.get(task, task))
        for task, (color, opacity) in _COLORS.items()
        if task in drawn
    ]
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1.0),
        ncols=len(handles),
        handlelength=1.0,
        borderaxespad=0,
    )


def _box(span: Span) -> Path:
    top, bottom = span.pp_rank + _GAP, span.pp_rank + 1 - _GAP
    corners = [(span.start, top), (span.stop, top), (span.stop, bottom), (span.start, bottom), (span.start, top)]
    return Path(corners, closed=True)


def _number(axes: Axes, timeline: Sequence[Span]) -> None:
    """The micro-batches, where all of them can be read."""
    passes = [span for span in timeline if span.task not in ("reduce", "update")]
    if min(span.stop - span.start for span in passes) < _READABLE * max(span.stop for span in timeline):
        return
    for span in passes:
        middle = (span.start + span.stop) / 2, span.pp_rank + 0.5
        axes.text(*middle, str(span.micro_batch), ha="center", va="center", fontsize=6.5)


def draw_pareto(report: PlanReport) -> Figure | None:
    """Time against memory; None for a plan without a search."""
    found = report.search
    if found is None:
        return None
    with drawing("pareto", 3.9) as plot:
        axes = plot.axes
        others = found.ranked[:: len(found.ranked) // _MOST_POINTS + 1]
        axes.plot(*_places(others), linestyle="none", marker="o", markersize=2.5, color=MUTED, alpha=0.45, label="fits")
        best = found.pareto
        axes.plot(*_places(best), marker="o", markersize=4.5, color=SERIES[0], label="best")
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
    caption = (
        f"{found.num_fitting:,} of {found.num_layouts:,} layouts fit; the dashed line is the memory that they may need."
    )
    return Figure("Layouts: time against memory", caption, plot.svg, wide=True)


def _places(candidates: tuple[Candidate, ...]) -> tuple[list[float], list[float]]:
    return [candidate.memory.peak / 1e9 for candidate in candidates], [c.time.seconds for c in candidates]
