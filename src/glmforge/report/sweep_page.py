"""The page of a sweep: losses of all runs, the measure over each setting, and a table.

In the drawing of losses the best runs have a colour each and stand in the legend; the others are thin and grey.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from glmforge.observe.run import write_text
from glmforge.report.canvas import MUTED, SERIES, Figure, draw_legend, plot_over_tokens, thinned, tick
from glmforge.report.page import Summary, check_suffix, page_template

_MAX_CURVES = 400
_LOG_FROM = 30.0
"""Largest over smallest positive value: from there on an axis is logarithmic."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep; `measure` is None if it has none yet, `losses` are tokens and loss of each record."""

    name: str
    settings: dict[str, float | str]
    measure: float | None
    losses: Sequence[tuple[float, float]]


def write_sweep_page(summary: Summary, runs: Sequence[SweepRun], measure: str, out: Path) -> None:
    """Write the page to `out`; the runs are sorted, the best by `measure` first.

    Raises `ConfigError` for a suffix other than .html.
    """
    check_suffix(out, "--out")
    write_text(out, page_template("sweep.html").render(summary=summary, figures=draw_sweep(runs, measure)))


def draw_sweep(runs: Sequence[SweepRun], measure: str) -> list[Figure]:
    """Every plot that there is data for; the runs are sorted, the best by `measure` first."""
    drawn = [_losses(runs, measure), *(_setting(runs, key, measure) for key in runs[0].settings)]
    return [figure for figure in drawn if figure is not None]


def _losses(runs: Sequence[SweepRun], measure: str) -> Figure | None:
    shown = [run for run in runs if run.losses][:_MAX_CURVES]
    if not shown:
        return None
    with plot_over_tokens(None, "sweep-loss", "cross-entropy (nats/token)", wide=True) as plot:
        for rank, run in enumerate(shown):
            tokens, losses = thinned(*np.array(run.losses, dtype=float).T)
            style: Any = {"color": MUTED, "alpha": 0.35, "linewidth": 0.8}
            if rank < len(SERIES):
                style = {"color": SERIES[rank], "label": run.name, "zorder": 3}
            plot.axes.plot(tokens, losses, marker="o" if len(losses) == 1 else "", markersize=3, **style)
        curves = [[loss for _, loss in run.losses if math.isfinite(loss)] for run in shown]
        low, high = (pick(map(pick, filter(None, curves)), default=0.0) for pick in (min, max))
        first = max((curve[0] for curve in curves if curve), default=high)
        if low < first < high:  # a run that diverges must not flatten the others
            plot.axes.set_ylim(low - 0.04 * (first - low), first + 0.06 * (first - low))
        draw_legend(plot.axes)
    caption = f"Training loss of every run, long ones smoothed; in colour the best by {measure}."
    return Figure("Loss of all points", caption, plot.svg, wide=True)


def _setting(runs: Sequence[SweepRun], key: str, measure: str) -> Figure | None:
    points = [
        (run.settings[key], run.measure) for run in runs if run.measure is not None and math.isfinite(run.measure)
    ]
    if not points:
        return None
    values, measures = zip(*points, strict=True)
    numbers = [value for value in values if not isinstance(value, str)]
    with plot_over_tokens(None, f"sweep-{key}", measure) as plot:
        if len(numbers) < len(values):  # words, or both
            words = sorted({str(value) for value in values})
            values = tuple(words.index(str(value)) for value in values)
            plot.axes.set_xticks(range(len(words)), [word.replace("$", r"\$") for word in words])
        elif min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_FROM:
            plot.axes.set_xscale("log")
            plot.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        plot.axes.set_xlabel(key)
        plot.axes.margins(x=0.06)
        plot.axes.plot(values, measures, linestyle="none", marker="o", markersize=3.5, color=SERIES[0])
    return Figure(key, f"Each dot is a run: its {key}, and its {measure}.", plot.svg)
