"""The page that compares runs: their curves on the same axes, over steps, tokens or training time, and tables.

Every run has a colour and, from the ninth on, dashes; names stand in the page's own legend, not in the drawings. The
three axes are three drawings, of which the page shows one: without JavaScript.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from glmforge.observe.metrics import Record
from glmforge.observe.run import write_text
from glmforge.report.canvas import MANY_SERIES, Figure, draw_curve, drawing, limit_spikes, tick
from glmforge.report.page import Summary, check_suffix, page_template

AXES = {"steps": "steps", "tokens": "tokens trained", "time": "training time (s)"}

_PLOTS = (
    ("loss", "Training loss", "cross-entropy (nats/token)"),
    ("pair_loss", "Training loss of pairs", "nats/pair"),
    ("reward", "Reward", "mean reward"),
    ("bits_per_byte", "Held-out text, mean of the sources", "bits per byte"),
    ("held_out_pair_accuracy", "Held-out pairs", "accuracy"),
    ("benchmark_score", "Benchmarks, mean", "score"),
    ("tokens_per_second", "Throughput", "tokens/s"),
    ("grad_norm", "Gradient norm", "gradient norm"),
    ("max_violation_max", "Busiest expert over its share, minus 1", "violation"),
)
_WIDE = ("loss", "pair_loss", "reward")


@dataclass(frozen=True)
class Curves:
    """A run's records of training, and its evaluations as step and value under the name of what they measure."""

    name: str
    metrics: Sequence[Record]
    scores: Mapping[str, Sequence[tuple[int, float]]]


def write_comparison(summary: Summary, runs: Sequence[Curves], out: Path) -> Path:
    """Write the page to `out`. Raises `ConfigError` for a suffix other than .html."""
    check_suffix(out, "--output")
    legend = [(run.name, 1 + place % len(MANY_SERIES), place >= len(MANY_SERIES)) for place, run in enumerate(runs)]
    page = page_template("comparison.html")
    write_text(out, page.render(summary=summary, legend=legend, axes=AXES, figures=draw_comparison(runs)))
    return out


def draw_comparison(runs: Sequence[Curves]) -> dict[str, list[Figure]]:
    """For each axis every plot that there is data for."""
    drawn: dict[str, list[Figure]] = {}
    for axis in AXES:
        places = [_places(run, axis) for run in runs]
        longest = max(float(xs[-1]) for _, xs in places)
        plots = (_plot(runs, places, name, title, label, axis, longest) for name, title, label in _PLOTS)
        drawn[axis] = [plot for plot in plots if plot is not None]
    return drawn


def _plot(
    runs: Sequence[Curves],
    places: Sequence[tuple[np.ndarray, np.ndarray]],
    name: str,
    title: str,
    label: str,
    axis: str,
    longest: float,
) -> Figure | None:
    points = [_points(run, name) for run in runs]
    if not any(len(steps) for steps, _ in points):
        return None
    wide = name in _WIDE
    with drawing(f"compare-{axis}-{name}", 3.5 if wide else 2.55, wide=wide) as plot:
        axes = plot.axes
        axes.set(xlabel=AXES[axis], ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(8 if wide else 5))
        for one in (axes.xaxis, axes.yaxis):
            one.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        for place, ((steps, values), (known, xs)) in enumerate(zip(points, places, strict=True)):
            if len(steps):
                color, dashed = MANY_SERIES[place % len(MANY_SERIES)], place >= len(MANY_SERIES)
                is_score = name in runs[place].scores
                draw_curve(axes, np.interp(steps, known, xs), values, smooth=not is_score, color=color, dashed=dashed)
        limit_spikes(axes, np.concatenate([values for _, values in points]))
        axes.set_xlim(-0.015 * longest, 1.015 * longest or 1.0)
    return Figure(title, "", plot.svg, wide=wide)


def _points(run: Curves, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and finite values of a metric or an evaluation."""
    if name in run.scores:
        found = list(run.scores[name])
    else:
        found = [
            (record["step"], float(record[name]))
            for record in run.metrics
            if isinstance(record.get(name), int | float) and math.isfinite(record[name])
        ]
    steps, values = np.array(found, dtype=float).reshape(-1, 2).T
    return steps, values


def _places(run: Curves, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps of a run, from 0 on, and where each lies on the axis."""
    steps = np.array([0, *(record["step"] for record in run.metrics)], dtype=float)
    if axis == "steps":
        return steps, steps
    if axis == "tokens":
        return steps, np.array([0, *(record.get("tokens", 0) for record in run.metrics)], dtype=float)
    seconds = [record.get("step_seconds", 0.0) for record in run.metrics]
    lengths = [after - before for before, after in pairwise(steps)]
    return steps, np.cumsum([0.0, *(count * each for count, each in zip(lengths, seconds, strict=True))])
