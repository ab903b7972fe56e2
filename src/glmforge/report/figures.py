"""What the report's plots show: each a function from a run's log to a `Figure`, or None without data for it.

How they are drawn is `canvas.py`; those of the experts are `figures_balance.py`, those of needle
tests `figures_needles.py`, those of benchmarks `figures_benchmarks.py`, of pairs of answers
`figures_preferences.py`, of reinforcement learning `figures_rl.py`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunLog
from glmforge.report.canvas import (
    SERIES,
    Figure,
    draw_curve,
    draw_legend,
    limit_spikes,
    plot_over_tokens,
    plot_series,
    series,
    smoothing_window,
)
from glmforge.report.figures_balance import (
    balance_of_layers,
    balance_over_time,
    bias_drift,
    load_of_experts,
    router_biases,
)
from glmforge.report.figures_benchmarks import benchmark_scores
from glmforge.report.figures_needles import needles_by_depth, needles_by_length
from glmforge.report.figures_preferences import pair_accuracy, pair_loss, pair_scores
from glmforge.report.figures_rl import reward_figures
from glmforge.report.overfitting import Verdict, find_overfitting

_MAX_SOURCES = 2 * len(SERIES)
_OTHER = "other"


def draw_figures(run: RunLog, evaluations: Path | None = None) -> list[Figure]:
    """Every plot the run has data for, in the report's order.

    Args:
        evaluations: directory with results of its checkpoints; see `benchmark_scores`.
    """
    plots: tuple[Callable[[RunLog], Figure | None], ...] = (
        _loss,
        pair_loss,
        _source_loss,
        _held_out,
        _gap,
        _accuracy,
        pair_accuracy,
        pair_scores,
        _held_out_answers,
        partial(benchmark_scores, results=evaluations),
        needles_by_length,
        needles_by_depth,
        _mtp_loss,
        _elastic_loss,
        _learning_rate,
        _throughput,
        _grad_norm,
        _batch_size,
        balance_over_time,
        router_biases,
        bias_drift,
        balance_of_layers,
        load_of_experts,
    )
    return [*reward_figures(run), *(figure for plot in plots if (figure := plot(run)) is not None)]


def _loss(run: RunLog) -> Figure | None:
    tokens, loss = series(run, "loss")
    if len(loss) == 0:
        return None
    with plot_over_tokens(run, "loss", "cross-entropy (nats/token)", wide=True) as plot:
        draw_curve(plot.axes, tokens, loss)
        limit_spikes(plot.axes, loss)
    caption = "Next-token cross-entropy of the global batch, per step."
    if smoothing_window(len(loss)) > 1:
        caption += f" The bold line is the mean of {smoothing_window(len(loss))} records."
    return Figure("Training loss", caption, plot.svg, wide=True)


def _source_loss(run: RunLog) -> Figure | None:
    """One curve per source, broken between phases that draw from it. A run of one source needs none."""
    curves = source_curves(run)
    if len(curves) < 2:
        return None
    with plot_over_tokens(run, "source-loss", "cross-entropy (nats/token)", wide=True) as plot:
        for number, (name, parts) in enumerate(curves.items()):
            color, dashed = SERIES[number % len(SERIES)], number >= len(SERIES)
            for part, (tokens, losses) in enumerate(parts):
                draw_curve(plot.axes, tokens, losses, color=color, dashed=dashed, label="" if part else name)
        limit_spikes(plot.axes, np.concatenate([losses for parts in curves.values() for _, losses in parts]))
        draw_legend(plot.axes)
    caption = "Next-token cross-entropy of each source's share of the batches."
    if _OTHER in curves:
        caption += f" '{_OTHER}' is the mean over the tokens of all sources except the {len(curves) - 1} largest."
    return Figure("Loss of each source", caption, plot.svg, wide=True)


def source_curves(run: RunLog) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Per source, for each phase with it, tokens trained and loss; the largest sources by name, the rest together."""
    records = [record for record in run.metrics if record.get("source_loss")]
    if not records:
        return {}
    drawn = records[-1]["source_tokens"]
    order = sorted({name for record in records for name in record["source_loss"]}, key=lambda n: -drawn.get(n, 0))
    shown = order if len(order) <= _MAX_SOURCES else order[: _MAX_SOURCES - 1]
    named = shown if shown == order else [*shown, _OTHER]
    curves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in named}
    with_drawn = list(zip(records, _tokens_between(records), strict=True))
    for _, group in groupby(with_drawn, key=lambda pair: pair[0].get("phase")):
        phase = list(group)
        for name in named:
            points = [
                (record["tokens"], value)
                for record, tokens in phase
                if math.isfinite(value := _value(record, tokens, name, shown))
            ]
            if points:
                x, y = np.array(points, dtype=float).T
                curves[name].append((x, y))
    return {name: parts for name, parts in curves.items() if parts}


def _tokens_between(records: list[Record]) -> Iterator[dict[str, float]]:
    """Label tokens of each source since the record before."""
    for before, record in pairwise([{"source_tokens": {}}, *records]):
        old = before["source_tokens"]
        yield {name: total - old.get(name, 0) for name, total in record["source_tokens"].items()}


def _value(record: Record, tokens: dict[str, float], name: str, shown: list[str]) -> float:
    """A source's loss in a record, or that of all sources not `shown`, or NaN."""
    losses = record["source_loss"]
    if name in shown:
        return float(losses.get(name, math.nan))
    others = [(losses[other], tokens.get(other, 0)) for other in losses if other not in shown]
    total = sum(weight for _, weight in others)
    return sum(loss * weight for loss, weight in others) / total if total else math.nan


def _held_out(run: RunLog) -> Figure | None:
    points = [record for record in run.evaluations if "bits_per_byte" in record]
    if not points:
        return None
    sources = sorted({record["source"] for record in points})
    with plot_over_tokens(run, "held-out", "bits per byte") as plot:
        _draw_by_source(plot.axes, points, "bits_per_byte", sources)
        for number, source in enumerate(sources):
            if at_start := [r["bits_per_byte_at_start"] for r in points if _is_compared(r, source)]:
                plot.axes.axhline(at_start[-1], color=SERIES[number % len(SERIES)], linestyle="--", linewidth=1)
    named = f" ({sources[0]})" if len(sources) == 1 else ""
    caption = f"Cross-entropy per byte of text held out from training{named}."
    if any("bits_per_byte_at_start" in record for record in points):
        caption += " Dashed: the initial weights; values above their line mean forgetting."
    return Figure("Held-out text", caption, plot.svg)


def _gap(run: RunLog) -> Figure | None:
    """A curve per held-out source; a line where one that overfits was at its best."""
    findings = [finding for finding in find_overfitting(run) if len(finding.steps) > 1]
    if not findings:
        return None
    sources = sorted({record["source"] for record in run.evaluations})  # in the colours of the other figures
    tokens = {record["step"]: record["tokens"] for record in run.evaluations}
    with plot_over_tokens(run, "gap", "nats/token") as plot:
        for finding in findings:
            color = SERIES[sources.index(finding.source) % len(SERIES)]
            places = [tokens[step] for step in finding.steps]
            plot.axes.plot(places, finding.gaps, color=color, marker="o", markersize=3.5, label=finding.source)
            if finding.verdict is Verdict.OVERFITS:
                plot.axes.axvline(places[finding.lowest], color=color, linestyle="--", linewidth=1)
        if len(findings) > 1:
            draw_legend(plot.axes)
    caption = "Held-out loss minus training loss."
    if any(finding.verdict is Verdict.OVERFITS for finding in findings):
        caption += " Dashed: lowest held-out loss; from there on the run overfits."
    return Figure("Gap between training and held-out text", caption, plot.svg)


def _accuracy(run: RunLog) -> Figure | None:
    points = [record for record in run.evaluations if "accuracy" in record]
    if not points:
        return None
    with plot_over_tokens(run, "accuracy", "share of tokens") as plot:
        _draw_by_source(plot.axes, points, "accuracy", sorted({record["source"] for record in points}))
    caption = "Next-token accuracy on held-out text."
    return Figure("Accuracy", caption, plot.svg)


def _held_out_answers(run: RunLog) -> Figure | None:
    points = [record for record in run.evaluations if "num_answers" in record]
    if not points:
        return None
    sources = sorted({record["source"] for record in run.evaluations})  # in the colours of the other figures
    with plot_over_tokens(run, "held-out-answers", "share of answers") as plot:
        _draw_by_source(plot.axes, points, "stopped", sources)
        _draw_by_source(plot.axes, points, "well_formed", sources, dashed=True)
        plot.axes.set_ylim(-0.03, 1.03)
    caption = "Answers to held-out prompts that end before the length limit; dashed: that are in GLM's format."
    return Figure("Held-out answers", caption, plot.svg)


def _draw_by_source(
    axes: Axes, points: list[Record], name: str, sources: Sequence[str], *, dashed: bool = False
) -> None:
    """A curve of a number for each of `sources` that has it; dashed ones are not in the legend."""
    for number, source in enumerate(sources):
        own = [(record["tokens"], record[name]) for record in points if record["source"] == source]
        if own:
            color, style, label = SERIES[number % len(SERIES)], "--" if dashed else "-", "" if dashed else source
            axes.plot(*np.array(own).T, style, color=color, marker="o", markersize=3.5, label=label)
    if len(sources) > 1 and not dashed:
        draw_legend(axes)


def _is_compared(record: Record, source: str) -> bool:
    return record["source"] == source and "bits_per_byte_at_start" in record


def _mtp_loss(run: RunLog) -> Figure | None:
    caption = "Loss of predicting the token after next."
    return plot_series(run, "loss_mtp", "Multi-token prediction", caption, "cross-entropy (nats/token)")


def _elastic_loss(run: RunLog) -> Figure | None:
    caption = "Penalty on changes to weights that earlier text depends on, as added to the loss."
    return plot_series(run, "loss_ewc", "Elastic weight consolidation", caption, "nats/token", zero=True)


def _learning_rate(run: RunLog) -> Figure | None:
    return plot_series(
        run, "lr", "Learning rate", "Learning rate of each step.", "learning rate", smooth=False, zero=True
    )


def _throughput(run: RunLog) -> Figure | None:
    caption = "Tokens per second of training time, all ranks."
    return plot_series(run, "tokens_per_second", "Throughput", caption, "tokens/s", zero=True)


def _grad_norm(run: RunLog) -> Figure | None:
    caption = "L2 norm of the whole gradient before clipping."
    return plot_series(run, "grad_norm", "Gradient norm", caption, "gradient norm", zero=True)


def _batch_size(run: RunLog) -> Figure | None:
    """Tokens per step, of a run where they change."""
    points = [(r["tokens"], r["batch_size"] * r["seq_len"]) for r in run.metrics if "batch_size" in r]
    if len({size for _, size in points}) < 2:
        return None
    tokens, sizes = np.array(points, dtype=float).T
    with plot_over_tokens(run, "batch-size", "tokens per step") as plot:
        plot.axes.step(tokens, sizes, where="pre", color=SERIES[0])
        plot.axes.set_ylim(bottom=0)
    return Figure("Batch size", "Tokens of each step's global batch.", plot.svg)
