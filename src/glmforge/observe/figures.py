"""What the report's plots show: each a function from a run's log to a `Figure`, or None without data for it.

How they are drawn is `canvas.py`. The heat map of expert loads is an image whose transparency is the message:
an even load lets the page show through, so it reads the same on light and dark pages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from glmforge.observe.canvas import (
    SERIES,
    STYLE,
    draw_curve,
    limit_spikes,
    plot_over_tokens,
    series,
    smoothing_window,
    to_svg,
)
from glmforge.observe.run import RunLog


@dataclass(frozen=True)
class Figure:
    """A plot with its words. `svg` is inline-ready; `wide` figures take the page's full width."""

    title: str
    caption: str
    svg: str
    wide: bool = False


def draw_figures(run: RunLog) -> list[Figure]:
    """Every plot the run has data for, in the report's order."""
    plots: tuple[Callable[[RunLog], Figure | None], ...] = (
        _loss,
        _held_out,
        _mtp_loss,
        _learning_rate,
        _throughput,
        _grad_norm,
        _balance,
        _expert_load,
    )
    return [figure for plot in plots if (figure := plot(run)) is not None]


def _loss(run: RunLog) -> Figure | None:
    tokens, loss = series(run, "loss")
    if len(loss) == 0:
        return None
    with plot_over_tokens(run, "loss", "cross-entropy (nats/token)", wide=True) as plot:
        draw_curve(plot.axes, tokens, loss)
        limit_spikes(plot.axes, loss)
    caption = "Next-token cross-entropy of each step's global batch."
    if smoothing_window(len(loss)) > 1:
        caption += f" The strong line is the mean of {smoothing_window(len(loss))} records."
    return Figure("Training loss", caption, plot.svg, wide=True)


def _held_out(run: RunLog) -> Figure | None:
    points = [record for record in run.evaluations if "bits_per_byte" in record]
    if not points:
        return None
    sources = sorted({record["source"] for record in points})
    with plot_over_tokens(run, "held-out", "bits per byte") as plot:
        for number, source in enumerate(sources):
            own = [(r["tokens"], r["bits_per_byte"]) for r in points if r["source"] == source]
            color = SERIES[number % len(SERIES)]
            plot.axes.plot(*np.array(own).T, color=color, marker="o", markersize=3.5, label=source)
        if len(sources) > 1:
            _legend(plot.axes)
    named = f" ({sources[0]})" if len(sources) == 1 else ""
    return Figure("Held-out text", f"Cross-entropy per byte of text the model never trains on{named}.", plot.svg)


def _mtp_loss(run: RunLog) -> Figure | None:
    caption = "Loss of predicting the token after the next."
    return _curve(run, "loss_mtp", "Multi-token prediction", caption, "cross-entropy (nats/token)")


def _learning_rate(run: RunLog) -> Figure | None:
    return _curve(run, "lr", "Learning rate", "As used by each step.", "learning rate", smooth=False, zero=True)


def _throughput(run: RunLog) -> Figure | None:
    caption = "Tokens per second of training time, all ranks."
    return _curve(run, "tokens_per_second", "Throughput", caption, "tokens/s", zero=True)


def _grad_norm(run: RunLog) -> Figure | None:
    caption = "L2 norm of the whole gradient before clipping."
    return _curve(run, "grad_norm", "Gradient norm", caption, "gradient norm", zero=True)


def _balance(run: RunLog) -> Figure | None:
    worst, mean = series(run, "max_violation_max"), series(run, "max_violation_mean")
    if len(worst[1]) == 0:
        return None
    with plot_over_tokens(run, "balance", "load over mean, minus 1") as plot:
        draw_curve(plot.axes, *worst, color=SERIES[1], label="worst layer")
        draw_curve(plot.axes, *mean, color=SERIES[0], label="mean of layers")
        plot.axes.set_ylim(bottom=0)
        _legend(plot.axes)
    caption = "How far the busiest expert is above its fair share; 0 is perfect."
    return Figure("Expert balance", caption, plot.svg)


def _curve(
    run: RunLog, name: str, title: str, caption: str, label: str, *, smooth: bool = True, zero: bool = False
) -> Figure | None:
    """The plot of one metric; with `zero` the y axis begins there."""
    tokens, values = series(run, name)
    if len(values) == 0:
        return None
    with plot_over_tokens(run, name, label) as plot:
        draw_curve(plot.axes, tokens, values, smooth=smooth)
        limit_spikes(plot.axes, values)
        if zero:
            plot.axes.set_ylim(bottom=0)
    return Figure(title, caption, plot.svg)


def _expert_load(run: RunLog) -> Figure | None:
    records = [record for record in run.metrics if "expert_load" in record]
    if not records:
        return None
    load_LE = np.array(records[-1]["expert_load"])
    unused = int((load_LE == 0).sum())
    caption = (
        f"Share of each layer's tokens at step {records[-1]['step']:,}, relative to an even spread (1×). "
        f"{unused or 'None'} of {load_LE.size:,} experts {'was' if unused == 1 else 'were'} unused."
    )
    svg = _heat_map(load_LE, _router_names(run.config, len(load_LE)))
    return Figure("Load of every expert", caption, svg, wide=True)


def _heat_map(load_LE: np.ndarray, names: list[str]) -> str:
    num_layers, num_experts = load_LE.shape
    with matplotlib.rc_context(STYLE):
        height = float(np.clip(0.8 + 0.19 * num_layers, 1.7, 6.0))
        canvas = Canvas(figsize=(10.6, height), layout="constrained")
        axes = canvas.add_subplot()
        axes.imshow(_load_colors(load_LE * num_experts), aspect="auto", interpolation="none")
        axes.set(xlabel="expert", ylabel="layer")
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
        axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
        shown = np.unique(np.linspace(0, num_layers - 1, min(num_layers, 16)).round().astype(int))
        axes.set_yticks(shown, [names[row] for row in shown])
        _load_scale(canvas, axes)
        return to_svg(canvas, "expert-load")


def _load_scale(canvas: Canvas, axes: Axes) -> None:
    """The colour scale beside the heat map."""
    shrink = min(1.0, 1.7 / canvas.get_figheight())  # the same size beside every map
    scale = canvas.colorbar(ScalarMappable(), ax=axes, fraction=0.02, pad=0.015, aspect=14, shrink=shrink).ax
    scale.clear()  # only the place of the colour bar is used: colour maps know no transparency by value
    octaves = np.linspace(1, -1, 65)
    colors = _load_colors(2.0**octaves)[:, None]
    scale.imshow(colors, aspect="auto", extent=(0, 1, -1, 1), interpolation="none")
    scale.grid(visible=False)
    scale.spines[:].set_visible(True)
    scale.set_xticks([])
    scale.yaxis.tick_right()
    scale.set_yticks([-1, 0, 1], ["≤ ½×", "1×", "≥ 2×"])


def _load_colors(relative: np.ndarray) -> np.ndarray:
    """RGBA of loads relative to an even spread: blue below 1, orange above, clear at 1, full at ½ and 2."""
    octaves = np.log2(np.maximum(relative, 0.5)).clip(-1, 1)
    colors = np.where(octaves[..., None] < 0, (0.20, 0.45, 0.80), (0.90, 0.47, 0.13))
    return np.concatenate([colors, np.abs(octaves)[..., None]], axis=-1)


def _router_names(config: dict[str, Any], num_rows: int) -> list[str]:
    """Names of the routers, which are the MoE layers, then the MTP layers; row numbers for another count."""
    model = config.get("model", {})
    first, end = model.get("first_k_dense_replace", 0), model.get("num_hidden_layers", 0)
    names = [str(layer) for layer in range(first, end)] + ["MTP"] * model.get("num_nextn_predict_layers", 0)
    return names if len(names) == num_rows else [str(row) for row in range(num_rows)]


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=4, borderaxespad=0)
