"""Drawings of a plan: the passes of a pipelined step rank by rank, and the layouts that a search found."""

import re
from collections import defaultdict
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, MaxNLocator

from glmforge.observe.units import format_seconds
from glmforge.plan.time.simulate import Span
from glmforge.report.canvas import SERIES, STYLE, Figure, to_svg

MAX_SPANS = 20_000
"""More than these are not drawn: pages stay below a few megabytes."""
_COLORS = {
    "forward": (SERIES[0], 0.95),
    "backward": (SERIES[1], 0.95),
    "input": (SERIES[1], 0.95),
    "weight": (SERIES[1], 0.5),
    "reduce": (SERIES[2], 0.95),
    "update": (SERIES[3], 0.95),
}
_WORDS = {"input": "backward, activations", "weight": "backward, weights"}
_LATER_STAGE = 0.6
"""Opacity of passes through a rank's second stage and those after it, as a share of the first's."""
_GAP = 0.12
_READABLE = 0.012
"""Share of the drawing's width that the number of a micro-batch needs."""


def draw_pipeline(timeline: Sequence[Span]) -> Figure | None:
    """The passes of a step, a row for each pipeline rank; None without a pipeline."""
    num_ranks = 1 + max((span.pp_rank for span in timeline), default=0)
    if num_ranks == 1:
        return None
    shown = timeline if len(timeline) <= MAX_SPANS else _beginning(timeline)
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(10.6, 0.23 * num_ranks + 1.15), layout="constrained")
        axes = canvas.add_subplot()
        _draw_rows(axes, shown, num_ranks)
        svg = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", to_svg(canvas, "pipeline"))
    caption = "What each pipeline rank computes in a step, predicted; it waits where nothing is drawn."
    if any(_is_later(span, num_ranks) for span in shown):
        caption += " Passes through a rank's second stage are paler."
    if len(shown) < len(timeline):
        caption += f" The beginning: {len(shown):,} of {len(timeline):,} passes."
    return Figure("A step of the pipeline", caption, svg, wide=True)


def _beginning(timeline: Sequence[Span]) -> list[Span]:
    return sorted(timeline, key=lambda span: span.start)[:MAX_SPANS]


def _is_later(span: Span, num_ranks: int) -> bool:
    return span.task in ("forward", "backward", "input", "weight") and span.stage >= num_ranks


def _draw_rows(axes: Axes, timeline: Sequence[Span], num_ranks: int) -> None:
    boxes: dict[tuple[str, bool], list[Path]] = defaultdict(list)
    for span in timeline:
        boxes[span.task, _is_later(span, num_ranks)].append(_box(span))
    for (task, is_later), paths in boxes.items():
        color, opacity = _COLORS[task]
        opacity *= _LATER_STAGE if is_later else 1.0
        axes.add_patch(PathPatch(Path.make_compound_path(*paths), facecolor=color, alpha=opacity, linewidth=0))
    stop = max(span.stop for span in timeline)
    axes.set(xlim=(0, stop), ylim=(num_ranks, 0), ylabel="pipeline rank")
    axes.set_yticks([rank + 0.5 for rank in range(num_ranks)], [str(rank) for rank in range(num_ranks)])
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.grid(visible=False)
    _number(axes, timeline, stop)
    tasks = [task for task in _COLORS if any(drawn == task for drawn, _ in boxes)]
    handles = [
        Patch(color=_COLORS[task][0], alpha=_COLORS[task][1], linewidth=0, label=_WORDS.get(task, task))
        for task in tasks
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


def _number(axes: Axes, timeline: Sequence[Span], stop: float) -> None:
    """The micro-batches, where all of them can be read."""
    passes = [span for span in timeline if span.task not in ("reduce", "update")]
    if min(span.stop - span.start for span in passes) < _READABLE * stop:
        return
    for span in passes:
        middle = (span.start + span.stop) / 2, span.pp_rank + 0.5
        axes.text(*middle, str(span.micro_batch), ha="center", va="center", fontsize=6.5)
