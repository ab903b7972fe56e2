"""The report's plots of runs that learn from pairs of answers: loss, held-out accuracy with its interval, scores."""

import numpy as np

from glmforge.observe.run import RunLog
from glmforge.report.canvas import SERIES, Figure, draw_curve, draw_legend, plot_over_tokens, series


def pair_loss(run: RunLog) -> Figure | None:
    """Of training, and of each held-out source."""
    tokens, losses = series(run, "pair_loss")
    if len(losses) == 0:
        return None
    with plot_over_tokens(run, "pair-loss", "nats/pair", wide=True) as plot:
        draw_curve(plot.axes, tokens, losses, label="training")
        for number, source in enumerate(_sources(run), start=1):
            x, y = _points(run, source, "held_out_pair_loss").T
            plot.axes.plot(x, y, color=SERIES[number % len(SERIES)], marker="o", markersize=3.5, label=source)
        plot.axes.axhline(np.log(2), color="grey", linestyle="--", linewidth=1)
        draw_legend(plot.axes)
    caption = "Mean -log of the probability that the chosen answer is the better one. Dashed: a coin."
    return Figure("Loss over pairs", caption, plot.svg, wide=True)


def pair_accuracy(run: RunLog) -> Figure | None:
    sources = _sources(run)
    if not sources:
        return None
    with plot_over_tokens(run, "pair-accuracy", "share of pairs") as plot:
        for number, source in enumerate(sources):
            x, y = _points(run, source, "held_out_pair_accuracy").T
            low, high = (_points(run, source, f"held_out_pair_accuracy_{end}").T[1] for end in ("low", "high"))
            around, color = np.stack((y - low, high - y)).clip(min=0), SERIES[number % len(SERIES)]
            plot.axes.errorbar(x, y, around, color=color, marker="o", markersize=3.5, capsize=2, label=source)
        plot.axes.axhline(0.5, color="grey", linestyle="--", linewidth=1)
        if len(sources) > 1:
            draw_legend(plot.axes)
    caption = "Held-out pairs whose chosen answer has the higher score, with Wilson's 95 % interval. Dashed: a coin."
    return Figure("Accuracy on held-out pairs", caption, plot.svg)


def pair_scores(run: RunLog) -> Figure | None:
    tokens, chosen = series(run, "score_chosen")
    if len(chosen) == 0:
        return None
    with plot_over_tokens(run, "pair-scores", "score") as plot:
        draw_curve(plot.axes, tokens, chosen, label="chosen")
        draw_curve(plot.axes, *series(run, "score_rejected"), color=SERIES[1], label="rejected")
        draw_legend(plot.axes)
    caption = "Mean scores of chosen and rejected answers in training; of DPO implicit rewards, beta included."
    return Figure("Scores", caption, plot.svg)


def _sources(run: RunLog) -> list[str]:
    """Of held-out pairs, without the categories within them."""
    found = {record["source"] for record in run.evaluations if "held_out_pair_accuracy" in record}
    return sorted(source for source in found if source.rpartition("/")[0] not in found)


def _points(run: RunLog, source: str, name: str) -> np.ndarray:
    return np.array([(r["tokens"], r[name]) for r in run.evaluations if r["source"] == source and name in r], float)
