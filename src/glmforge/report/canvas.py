"""How the report's plots are drawn: style, marks of the run, SVG fit for the page.

Plots are SVG without colours or fonts of their own: they are drawn in stand-in colours that `to_svg` turns
into the page's CSS variables, and text stays text. So one drawing serves light mode, dark mode and paper, is
set in the page's typeface, and can be searched.

All curves stand over tokens, not steps, so that runs with other batch sizes compare. Long runs are thinned to
as many points as the eye can tell apart; the raw curve then becomes the band between its minimum and maximum,
so that no spike is lost.
"""

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from glmforge.observe.run import RunLog
from glmforge.observe.units import format_count

# Stand-ins for the page's CSS variables.
INK, MUTED, RULE = "#010101", "#020202", "#030303"
SERIES = ("#040404", "#050505", "#060606", "#070707")
MANY_SERIES = (*SERIES, "#080808", "#090909", "#0a0a0a", "#0b0b0b")
"""For drawings of more things than a report has."""
_CSS = {INK: "--ink", MUTED: "--muted", RULE: "--rule"} | {
    color: f"--series-{number}" for number, color in enumerate(MANY_SERIES, start=1)
}

STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.xmargin": 0.015,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.labelcolor": MUTED,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "savefig.transparent": True,
}

_MAX_POINTS = 600
_MAX_LABELLED_MARKS = 6
_TICK_STEPS = (1, 2, 2.5, 5, 10)
_DASHED, _DOTTED = (0, (3, 2)), (0, (1, 1.5))


@dataclass(frozen=True)
class Figure:
    """A plot with its words. `svg` is inline-ready; `wide` figures take the page's full width."""

    title: str
    caption: str
    svg: str
    wide: bool = False


class Plot:
    """A drawing: `canvas`, or the `axes` of its only plot, to draw on."""

    def __init__(self, canvas: Canvas) -> None:
        self.canvas = canvas
        self.svg = ""

    @cached_property
    def axes(self) -> Axes:
        return self.canvas.add_subplot()


@contextmanager
def drawing(name: str, height: float, *, wide: bool = True) -> Iterator[Plot]:
    """A drawing in the page's style, `height` inches high; its `svg` is finished after the `with` block."""
    with matplotlib.rc_context(STYLE):
        plot = Plot(Canvas(figsize=(10.6 if wide else 5.1, height), layout="constrained"))
        yield plot
        plot.svg = to_svg(plot.canvas, name)


@contextmanager
def plot_over_tokens(run: RunLog | None, name: str, label: str, *, wide: bool = False) -> Iterator[Plot]:
    """A plot of `label` over tokens; the marks of the run, if it is of one, are added, on wide plots with words."""
    with drawing(name, 3.5 if wide else 2.55, wide=wide) as plot:
        plot.axes.set(xlabel="tokens trained", ylabel=label)
        plot.axes.xaxis.set_major_locator(MaxNLocator(8 if wide else 5, steps=_TICK_STEPS))
        plot.axes.yaxis.set_major_locator(MaxNLocator(6 if wide else 5, steps=_TICK_STEPS))
        for axis in (plot.axes.xaxis, plot.axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        yield plot
        if run is not None:
            draw_marks(plot.axes, run, labelled=wide)


def series(run: RunLog, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens consumed and a metric's finite values, of the training records that have it."""
    points = [(r["tokens"], r[name]) for r in run.metrics if name in r and math.isfinite(r[name])]
    tokens, values = np.array(points, dtype=float).reshape(-1, 2).T
    return tokens, values


def smoothing_window(num_values: int) -> int:
    """Records per moving mean: about a fiftieth of the curve, odd; 1, no smoothing, below 30 records."""
    return 1 if num_values < 30 else 2 * max(2, num_values // 100) + 1


def draw_curve(
    axes: Axes,
    tokens: np.ndarray,
    values: np.ndarray,
    *,
    smooth: bool = True,
    color: str = SERIES[0],
    label: str = "",
    dashed: bool = False,
) -> None:
    """A curve: its moving mean strong and its raw values faint, or just the values if there are few."""
    if len(values) == 1:
        axes.plot(tokens, values, color=color, marker="o", markersize=4, label=label)
        return
    style: Any = _DASHED if dashed else "solid"
    centers, means = thinned(tokens, values, smooth=smooth)
    is_smoothed = smooth and smoothing_window(len(values)) > 1
    if is_smoothed and len(values) > _MAX_POINTS:
        low, high = ([pick(values[rows]) for rows in _bins(len(values))] for pick in (np.min, np.max))
        axes.fill_between(centers, low, high, color=color, alpha=0.25, linewidth=0)
    elif is_smoothed:
        axes.plot(tokens, values, color=color, alpha=0.3, linewidth=0.8)
    axes.plot(centers, means, color=color, label=label, linestyle=style)


def thinned(tokens: np.ndarray, values: np.ndarray, *, smooth: bool = True) -> tuple[list[float], list[float]]:
    """At most as many points as the eye can tell apart: means of neighbours, of the moving mean if `smooth`."""
    mean = _moving_mean(values, smoothing_window(len(values)) if smooth else 1)
    bins = _bins(len(values))
    return [tokens[rows].mean() for rows in bins], [mean[rows].mean() for rows in bins]


def _bins(num_values: int) -> list[np.ndarray]:
    return np.array_split(np.arange(num_values), min(num_values, _MAX_POINTS))


def plot_series(
    run: RunLog, name: str, title: str, caption: str, label: str, *, smooth: bool = True, zero: bool = False
) -> Figure | None:
    """The plot of one metric, None without data; with `zero` the y axis begins there."""
    tokens, values = series(run, name)
    if len(values) == 0:
        return None
    with plot_over_tokens(run, name, label) as plot:
        draw_curve(plot.axes, tokens, values, smooth=smooth)
        limit_spikes(plot.axes, values)
        if zero:
            plot.axes.set_ylim(bottom=0)
    return Figure(title, caption, plot.svg)


def draw_legend(axes: Axes) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=4, borderaxespad=0)


def limit_spikes(axes: Axes, values: np.ndarray) -> None:
    """End the y axis at the first value or the 99.5th percentile: one spike must not flatten the curve."""
    if len(values) >= 100:
        low, high = values.min(), max(np.quantile(values, 0.995), values[0])
        if high > low:
            axes.set_ylim(low - 0.04 * (high - low), high + 0.06 * (high - low))


def to_svg(canvas: Canvas, name: str) -> str:
    """The drawing as an inline element: page colours, no XML prologue, no ids but those it refers to."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):  # ids differ between figures, not between runs
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    opening, rest = svg.split(">", maxsplit=1)
    svg = re.sub(r' (?:width|height)="[^"]*"', "", opening) + ">" + rest  # the page sets the size
    for color, variable in _CSS.items():
        svg = svg.replace(color, f"var({variable})")
    return svg


def _moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` values, over fewer at the ends."""
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    rows = np.arange(len(values))
    first, end = np.maximum(rows - half, 0), np.minimum(rows + half + 1, len(values))
    mean: np.ndarray = (sums[end] - sums[first]) / (end - first)
    return mean


def draw_marks(axes: Axes, run: RunLog, *, labelled: bool) -> None:
    """Vertical lines: dashed where the run was killed or resumed, dotted where a new phase began."""
    marks = [(*mark, _DASHED) for mark in _interruptions(run)] + [(*mark, _DOTTED) for mark in _new_phases(run)]
    for position, text, dashes in marks:
        axes.axvline(position, color=MUTED, alpha=0.7, linewidth=0.8, linestyle=dashes, zorder=1)
        if labelled and len(marks) <= _MAX_LABELLED_MARKS:
            left = text == "resumed"  # a run resumes at or before the step it was killed at
            axes.annotate(
                text,
                (position, 1),
                (-4 if left else 4, -2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                color=MUTED,
                ha="right" if left else "left",
                va="top",
            )


def _interruptions(run: RunLog) -> list[tuple[float, str]]:
    steps = [record["step"] for record in run.metrics]
    tokens = [record["tokens"] for record in run.metrics]
    events = [event for event in run.events if event["event"] in {"killed", "resumed"}]
    return [(float(np.interp(event["step"], steps, tokens)), event["event"]) for event in events]


def _new_phases(run: RunLog) -> list[tuple[float, str]]:
    pairs = zip(run.metrics, run.metrics[1:], strict=False)
    return [(a["tokens"], f"phase {b['phase']}") for a, b in pairs if a.get("phase") != b.get("phase")]


def tick(value: float) -> str:
    """A tick's label: 1.5M, 200k, 2.5, 0.25, 2e-4."""
    if value == 0:
        return "0"
    if abs(value) < 0.01:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return format_count(value, trim=True) if abs(value) >= 1000 else f"{value:.4g}"
