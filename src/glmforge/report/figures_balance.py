"""The report's plots of the experts: balance over time, balance of every layer, load of every expert, router biases.

Heat maps are images whose transparency is the message: what is even lets the page show through, so they read the same
on light and dark pages.

Shapes: L routers, E experts, C columns of a map.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog
from glmforge.report.canvas import (
    SERIES,
    Figure,
    Plot,
    draw_curve,
    draw_legend,
    draw_marks,
    drawing,
    plot_over_tokens,
    plot_series,
    series,
    tick,
)

_MAX_COLUMNS = 300
_MAX_NAMED_LAYERS = 8
_BELOW, _ABOVE, _UNKNOWN = (0.20, 0.45, 0.80), (0.90, 0.47, 0.13), (0.50, 0.50, 0.50)


class Scale(NamedTuple):
    """What a map's colours mean: loads relative to an even spread, in powers of two; full colour at both ends."""

    low: int
    high: int
    labels: Sequence[str]


_OF_EXPERTS = Scale(-1, 1, ("≤ ½×", "1×", "≥ 2×"))
_OF_LAYERS = Scale(0, 2, ("1×", "2×", "≥ 4×"))


def balance_over_time(run: RunLog) -> Figure | None:
    worst, mean = series(run, "max_violation_max"), series(run, "max_violation_mean")
    if len(worst[1]) == 0:
        return None
    with plot_over_tokens(run, "balance", "load over mean, minus 1") as plot:
        draw_curve(plot.axes, *worst, color=SERIES[1], label="worst layer")
        draw_curve(plot.axes, *mean, color=SERIES[0], label="mean of layers")
        plot.axes.set_ylim(bottom=0)
        draw_legend(plot.axes)
    caption = "Load of each layer's busiest expert over an even share of the step's tokens, minus 1; 0 is perfect."
    return Figure("Expert balance", caption, plot.svg)


def router_biases(run: RunLog) -> Figure | None:
    worst, mean = series(run, "bias_spread_max"), series(run, "bias_spread_mean")
    if len(worst[1]) == 0:
        return None
    with plot_over_tokens(run, "bias-spread", "largest minus smallest bias") as plot:
        draw_curve(plot.axes, *worst, color=SERIES[1], label="widest layer", smooth=False)
        draw_curve(plot.axes, *mean, color=SERIES[0], label="mean of layers", smooth=False)
        plot.axes.set_ylim(bottom=0)
        draw_legend(plot.axes)
    caption = "Range of the correction biases of a layer: how much correction balancing needs."
    return Figure("Router biases", caption, plot.svg)


def bias_drift(run: RunLog) -> Figure | None:
    caption = "Largest change of a correction bias between two records."
    title, label = "Drift of the router biases", "change of a bias"
    return plot_series(run, "bias_drift_max", title, caption, label, smooth=False, zero=True)


def balance_of_layers(run: RunLog) -> Figure | None:
    """Layers over tokens, coloured by the load of each layer's busiest expert."""
    records = [record for record in run.metrics if "layer_max_violation" in record]
    if not records:
        return None
    tokens, violation_LC = columns(records)
    num_layers = len(violation_LC)
    with _map("layer-balance", router_names(run.config, num_layers), _OF_LAYERS) as plot:
        axes, extent = plot.axes, (tokens[0], tokens[-1], num_layers - 0.5, -0.5)
        axes.imshow(_colors(1 + violation_LC, _OF_LAYERS), aspect="auto", interpolation="none", extent=extent)
        axes.set(xlabel="tokens trained", ylabel="layer")
        axes.xaxis.set_major_locator(MaxNLocator(8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        draw_marks(axes, run, labelled=False)
        axes.set_xlim(tokens[0], tokens[-1])
    caption = "Load of each layer's busiest expert, as a multiple of an even share; the worst step per column. "
    return Figure("Balance of every layer", caption + dead_experts(run), plot.svg, wide=True)


def load_of_experts(run: RunLog) -> Figure | None:
    records = [record for record in run.metrics if "expert_load" in record]
    if not records:
        return None
    load_LE = np.array(records[-1]["expert_load"])
    unused, (num_layers, num_experts) = int((load_LE == 0).sum()), load_LE.shape
    caption = (
        f"Share of each layer's tokens at step {records[-1]['step']:,}, relative to an even spread (1×). "
        f"{unused or 'None'} of {load_LE.size:,} experts {'was' if unused == 1 else 'were'} unused."
    )
    with _map("expert-load", router_names(run.config, num_layers), _OF_EXPERTS) as plot:
        plot.axes.imshow(_colors(load_LE * num_experts, _OF_EXPERTS), aspect="auto", interpolation="none")
        plot.axes.set(xlabel="expert", ylabel="layer")
        plot.axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    return Figure("Load of every expert", caption, plot.svg, wide=True)


def dead_experts(run: RunLog) -> str:
    """Which layers had experts without a token in the last step that tells, in a sentence; and the worst step."""
    records = [record for record in run.metrics if "layer_dead_experts" in record]
    if not records:
        return ""
    last, worst = records[-1], max(records, key=lambda record: sum(record["layer_dead_experts"]))
    dead_L = np.array(last["layer_dead_experts"])
    names = router_names(run.config, len(dead_L))
    where = [f"{names[row]} ({dead_L[row]})" for row in np.flatnonzero(dead_L)]
    more = f" and {len(where) - _MAX_NAMED_LAYERS} more" if len(where) > _MAX_NAMED_LAYERS else ""
    found = f"in layers {', '.join(where[:_MAX_NAMED_LAYERS])}{more}" if where else "in no layer"
    most = sum(worst["layer_dead_experts"])
    before = f"; the most were {most:,}, at step {worst['step']:,}" if most > dead_L.sum() else ""
    return f"Experts without a token at step {last['step']:,}: {found}{before}."


def router_names(config: dict[str, Any], num_rows: int) -> list[str]:
    """Names of the routers, which are the MoE layers, then the MTP layers (none where MTP is not trained); row numbers
    for another count."""
    model = config.get("model", {})
    first, end = model.get("first_k_dense_replace", 0), model.get("num_hidden_layers", 0)
    trunk = [str(layer) for layer in range(first, end)]
    names = trunk + ["MTP"] * model.get("num_nextn_predict_layers", 0)
    if num_rows == len(trunk):
        return trunk
    return names if len(names) == num_rows else [str(row) for row in range(num_rows)]


def columns(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the columns in tokens [C + 1], and each layer's worst violation in them [L, C], NaN if not known.

    A column without a record repeats the one before.
    """
    num_layers = max(len(record["layer_max_violation"]) for record in records)
    tokens = np.array([record["tokens"] for record in records], dtype=float)
    num_columns = min(len(records), _MAX_COLUMNS)
    start = tokens[0] - (tokens[1] - tokens[0] if len(tokens) > 1 else tokens[0])
    edges = np.linspace(max(0.0, start), tokens[-1], num_columns + 1)
    column = np.searchsorted(edges[1:-1], tokens)
    worst_LC = np.full((num_layers, num_columns), np.nan)
    for place, record in zip(column, records, strict=True):
        values = record["layer_max_violation"]
        worst_LC[: len(values), place] = np.fmax(worst_LC[: len(values), place], values)
    for place in range(1, num_columns):
        if place not in column:
            worst_LC[:, place] = worst_LC[:, place - 1]
    return edges, worst_LC


@contextmanager
def _map(name: str, layers: list[str], scale: Scale) -> Iterator[Plot]:
    """A map with a row for each layer; their names and the colour scale are added."""
    with drawing(name, float(np.clip(0.8 + 0.19 * len(layers), 1.7, 6.0))) as plot:
        plot.axes.grid(visible=False)
        plot.axes.spines[:].set_visible(True)
        yield plot
        shown = np.unique(np.linspace(0, len(layers) - 1, min(len(layers), 16)).round().astype(int))
        plot.axes.set_yticks(shown, [layers[row] for row in shown])
        _draw_scale(plot.canvas, plot.axes, scale)


def _draw_scale(canvas: Canvas, axes: Axes, scale: Scale) -> None:
    """The colour scale beside a map."""
    shrink = min(1.0, 1.7 / canvas.get_figheight())  # the same size beside every map
    bar = canvas.colorbar(ScalarMappable(), ax=axes, fraction=0.02, pad=0.015, aspect=14, shrink=shrink).ax
    bar.clear()  # only the place of the colour bar is used: colour maps know no transparency by value
    colors = _colors(2.0 ** np.linspace(scale.high, scale.low, 65), scale)[:, None]
    bar.imshow(colors, aspect="auto", extent=(0, 1, scale.low, scale.high), interpolation="none")
    bar.grid(visible=False)
    bar.spines[:].set_visible(True)
    bar.set_xticks([])
    bar.yaxis.tick_right()
    bar.set_yticks(np.linspace(scale.low, scale.high, len(scale.labels)), list(scale.labels))


def _colors(relative: np.ndarray, scale: Scale) -> np.ndarray:
    """RGBA of loads relative to an even spread: blue below 1, orange above, clear at 1, full at the scale's ends; a
    light grey where it is not known."""
    octaves = np.log2(np.maximum(relative, 2.0**scale.low)).clip(scale.low, scale.high)
    known = ~np.isnan(octaves)
    colors = np.where(octaves[..., None] < 0, _BELOW, np.where(known[..., None], _ABOVE, _UNKNOWN))
    opacity = np.abs(octaves) / np.where(octaves < 0, max(1, -scale.low), scale.high)
    return np.concatenate([colors, np.where(known, opacity, 0.25)[..., None]], axis=-1)
