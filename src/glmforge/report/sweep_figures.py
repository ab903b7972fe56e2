"""What a sweep's page draws: the loss of every run, and all settings of a run as one line that ends at its measure.

Few runs can be distinguished by colour. The best have one each and stand in the legend; the others are thin and grey,
so that one sees where the best lie among them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from glmforge.report.canvas import MUTED, SERIES, STYLE, Figure, draw_legend, smoothing_window, tick, to_svg
from glmforge.report.sweep_view import NUM_NAMED, SweepRun, SweepView

_MAX_POINTS = 300
_MAX_CURVES = 400
_LOG_FROM = 30.0
"""Of the largest positive value over the smallest: from there on an axis is logarithmic."""
_MAX_WORDS = 24


def draw_sweep(view: SweepView) -> list[Figure]:
    """Every plot that there is data for."""
    drawn = [_losses(view), _parallel(view)]
    return [figure for figure in drawn if figure is not None]


def _losses(view: SweepView) -> Figure | None:
    curves = [(rank, run) for rank, run in enumerate(view.runs) if run.losses]
    if not curves:
        return None
    shown = curves[:_MAX_CURVES]
    with _canvas("sweep-loss") as (axes, finish):
        axes.set(xlabel="tokens trained", ylabel="cross-entropy (nats/token)")
        axes.xaxis.set_major_locator(MaxNLocator(8))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        for rank, run in reversed(shown):  # the best on top
            tokens, losses = _thinned(run)
            marker: Any = {"marker": "o", "markersize": 3} if len(losses) == 1 else {}
            axes.plot(tokens, losses, **_style(rank, run), **marker)
        _limit(axes, [run.losses for _, run in shown])
        _legend(axes)
        svg = finish()
    left_out = f" The {len(curves) - len(shown):,} worst are not shown." if len(shown) < len(curves) else ""
    caption = f"Training loss of every run, long ones smoothed; in colour the best by {view.measure}.{left_out}"
    return Figure("Loss of all points", caption, svg, wide=True)


def _parallel(view: SweepView) -> Figure | None:
    """An axis for each setting, the last for the measure: a run is a line across all of them."""
    runs = [run for run in view.runs if run.measure is not None and math.isfinite(run.measure)]
    if not runs or not view.settings:
        return None
    measures: list[float | str] = [run.measure for run in runs if run.measure is not None]
    scales = [_Scale([run.settings.get(key, "") for run in runs]) for key in view.settings] + [_Scale(measures)]
    with _canvas("sweep-parallel") as (axes, finish):
        for rank, run in reversed(list(enumerate(runs))):
            values = [*(run.settings.get(key, "") for key in view.settings), run.measure]
            heights = [scale.height(value) for scale, value in zip(scales, values, strict=True) if value is not None]
            axes.plot(range(len(heights)), heights, **_style(rank, run))
        _draw_scales(axes, scales)
        axes.set_xticks(range(len(scales)), [*view.settings, view.measure])
        _legend(axes)
        svg = finish()
    better = "high" if view.larger_is_better else "low"
    caption = f"Each line is a run: its settings, then its {view.measure} ({better} is better)."
    return Figure("Settings and results", caption, svg, wide=True)


class _Scale:
    """Where the values of one axis lie between 0 and 1: numbers by size, or by logarithm; words in their order."""

    def __init__(self, values: Sequence[float | str]) -> None:
        numbers = [value for value in values if isinstance(value, int | float)]
        self.words: list[str] = []
        if len(numbers) < len(values):
            self.words = sorted({_word(value) for value in values})
            return
        self.low, self.high = min(numbers), max(numbers)
        self.is_log = self.low > 0 and self.high / self.low >= _LOG_FROM
        given = sorted(set(numbers))
        self.ticks = given if len(given) <= 5 else [self.low, self.high]

    def height(self, value: float | str) -> float:
        if self.words:
            return (self.words.index(_word(value)) + 0.5) / len(self.words)
        assert isinstance(value, int | float)
        if self.high == self.low:
            return 0.5
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[tuple[float, str]]:
        """Height and label of what is written beside the axis."""
        if self.words:
            return [(self.height(word), word) for word in self.words[:12]]
        return [(self.height(value), tick(value)) for value in self.ticks]


def _draw_scales(axes: Axes, scales: Sequence[_Scale]) -> None:
    axes.grid(visible=False)
    axes.set(yticks=[], xlim=(-0.15, len(scales) - 0.6), ylim=(-0.05, 1.05))
    for place, scale in enumerate(scales):
        axes.axvline(place, color=MUTED, linewidth=0.8, zorder=1)
        for height, text in scale.marks():
            axes.annotate(
                text.replace("$", r"\$"),
                (place, height),
                (4, 0),
                textcoords="offset points",
                color=MUTED,
                va="center",
                fontsize=8,
            )


@contextmanager
def _canvas(name: str) -> Iterator[tuple[Axes, Any]]:
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(10.6, 3.7), layout="constrained")
        yield canvas.add_subplot(), lambda: to_svg(canvas, name)


def _style(rank: int, run: SweepRun) -> dict[str, Any]:
    if rank < min(NUM_NAMED, len(SERIES)):
        return {"color": SERIES[rank], "label": run.name, "zorder": 3}
    return {"color": MUTED, "alpha": 0.35, "linewidth": 0.8, "zorder": 2}


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        draw_legend(axes)
        axes.legend(handles[::-1], labels[::-1], loc="lower right", bbox_to_anchor=(1, 1.0), ncols=4, borderaxespad=0)


def _thinned(run: SweepRun) -> tuple[np.ndarray, np.ndarray]:
    """At most this many points, so that a page of hundreds of runs stays small; means of neighbours where there are
    more.
    """
    tokens, losses = np.array(run.tokens, dtype=float), np.array(run.losses, dtype=float)
    window = smoothing_window(len(losses))
    if window > 1:
        padded = np.pad(losses, window // 2, mode="edge")
        losses = np.convolve(padded, np.ones(window) / window, mode="valid")
    bins = np.array_split(np.arange(len(losses)), min(len(losses), _MAX_POINTS))
    return np.array([tokens[rows].mean() for rows in bins]), np.array([losses[rows].mean() for rows in bins])


def _limit(axes: Axes, curves: Sequence[Sequence[float]]) -> None:
    """From the least loss to the largest at the beginning: a run that diverges must not flatten the others."""
    finite = [[loss for loss in curve if math.isfinite(loss)] for curve in curves]
    finite = [curve for curve in finite if curve]
    if not finite:
        return
    low, high = min(map(min, finite)), max(curve[0] for curve in finite)
    if high > low:
        axes.set_ylim(low - 0.04 * (high - low), high + 0.06 * (high - low))


def _word(value: float | str) -> str:
    text = value if isinstance(value, str) else f"{value:g}"
    return text if len(text) <= _MAX_WORDS else f"…{text[1 - _MAX_WORDS :]}"
