"""The report's plots of needle tests: what was retrieved last, by length and depth, and how that came about.

As in the other heat maps opacity is the message: what is always found lets the page show through, what is missed does
not.
"""

from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog
from glmforge.report.canvas import SERIES, Figure, draw_legend, drawing, plot_over_tokens, tick

_MISSED = (0.90, 0.47, 0.13)
_MAX_OPACITY = 0.85  # a cell's number stays legible


def needles_by_length(run: RunLog) -> Figure | None:
    """Accuracy over tokens, a curve per length; the mean over tasks and depths."""
    if not run.needles:
        return None
    lengths = sorted({record["needle_length"] for record in run.needles})
    with plot_over_tokens(run, "needles", "correct answers") as plot:
        for number, length in enumerate(lengths):
            own = [record for record in run.needles if record["needle_length"] == length]
            points = [(tokens, _accuracy(list(group))) for tokens, group in groupby(own, lambda one: one["tokens"])]
            color, style = SERIES[number % len(SERIES)], "-" if number < len(SERIES) else "--"
            label = f"{length:,}"
            plot.axes.plot(*np.array(points).T, style, color=color, marker="o", markersize=3.5, label=label)
        plot.axes.set_ylim(-0.03, 1.03)
        draw_legend(plot.axes)
    return Figure("Needles", "Retrieval accuracy by text length; mean over tasks and depths.", plot.svg)


def needles_by_depth(run: RunLog) -> Figure | None:
    """The map of the last evaluation that tested."""
    if not run.needles:
        return None
    step = run.needles[-1]["step"]
    return needle_map([record for record in run.needles if record["step"] == step], f" at step {step:,}")


def needle_map(records: list[Record], when: str = "") -> Figure | None:
    """A map of lengths over depths for each task; `when` is part of the caption."""
    if not records:
        return None
    tasks = list(dict.fromkeys(record["needle_task"] for record in records))
    num_lengths = len({record["needle_length"] for record in records})
    with drawing("needles-by-depth", float(np.clip(1.1 + 0.27 * num_lengths, 1.5, 5.0))) as plot:
        for number, task in enumerate(tasks, start=1):
            axes = plot.canvas.add_subplot(1, len(tasks), number)
            _draw_map(axes, task, [record for record in records if record["needle_task"] == task])
            if number == 1:
                axes.set_ylabel("tokens")
    method = {"scored": "scored by one forward pass", "generated": "generated"}[records[0]["needle_method"]]
    caption = f"Percentage of correct answers{when}, {method}, by the needle's depth in the text."
    return Figure("Needles by length and depth", caption, plot.svg, wide=True)


def perplexity_by_position(records: list[Record]) -> Figure | None:
    """Perplexity over the position in the text, of records with `position` (tokens) and `nll` (nats per token)."""
    points = sorted((one["position"], one["nll"]) for one in records if "position" in one)
    if not points:
        return None
    positions, nlls = np.array(points, dtype=float).T
    with drawing("perplexity-by-position", 2.55) as plot:
        plot.axes.plot(positions, np.exp(nlls), color=SERIES[0], marker="o", markersize=3.5)
        plot.axes.set(xlabel="position in the text, tokens", ylabel="perplexity")
        plot.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    caption = "Of the tokens from there on: where it rises, the model no longer uses what came before."
    return Figure("Perplexity by position", caption, plot.svg, wide=True)


def _draw_map(axes: Axes, task: str, records: list[Record]) -> None:
    lengths = sorted({record["needle_length"] for record in records})
    depths = sorted({record["needle_depth"] for record in records})
    found_LC = np.full((len(lengths), len(depths)), np.nan)
    for one in records:
        found_LC[lengths.index(one["needle_length"]), depths.index(one["needle_depth"])] = one["needle_accuracy"]
    opacity_LC = np.nan_to_num((1 - found_LC) * _MAX_OPACITY)
    colors = np.concatenate([np.broadcast_to(_MISSED, (*found_LC.shape, 3)), opacity_LC[..., None]], axis=-1)
    axes.imshow(colors, aspect="auto", interpolation="none")
    for (row, column), value in np.ndenumerate(found_LC):
        axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center")
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.set(title=task.replace("_", "-"), xlabel="depth")
    axes.set_xticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    axes.set_yticks(range(len(lengths)), [f"{length:,}" for length in lengths])


def _accuracy(records: list[Record]) -> float:
    right = sum(record["needle_accuracy"] * record["needle_answers"] for record in records)
    return float(right / sum(record["needle_answers"] for record in records))
