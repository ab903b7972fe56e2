"""The report's plots of reinforcement learning: rewards, policy, its distance to engine and reference, answers, time.

Curves come from the run's records; reward against length, and the best and worst answers, from `rollouts/`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from glmforge.observe.run import RunLog
from glmforge.report.canvas import (
    SERIES,
    Figure,
    draw_curve,
    draw_legend,
    drawing,
    limit_spikes,
    plot_over_tokens,
    plot_series,
    series,
    tick,
)
from glmforge.report.samples import ShownSample
from glmforge.rl.written import read_samples, steps_written

_MAX_CURVES = 2 * len(SERIES)
_MAX_DOTS, _NUM_STEPS = 2000, 5
_MAX_BARS = 120
_NUM_SAMPLES = 3
_ENDS = {"stop": "stopped", "length": "cut"}


def reward_figures(run: RunLog) -> list[Figure]:
    """Of a run of stage rl; [] of others."""
    plots = (
        _rewards,
        _reward_terms,
        _entropy,
        _reference_kl,
        _gap,
        _clipped,
        _groups,
        _lengths,
        _reward_against_length,
        _seconds,
    )
    return [figure for plot in plots if (figure := plot(run)) is not None] if _is_rl(run) else []


def best_and_worst(run: RunLog) -> list[ShownSample]:
    """The answers of the last step with the highest rewards, then those with the lowest; a reply to a prompt once."""
    steps = steps_written(run.directory.rollouts) if _is_rl(run) else []
    if not steps:
        return []
    records = [one for one in read_samples(run.directory.rollouts, steps[-1]) if one["reward"] is not None]
    distinct = {(one["group"], one["reply"]): one for one in records}
    ordered = sorted(distinct.values(), key=lambda one: -one["reward"])
    number = min(_NUM_SAMPLES, len(ordered) // 2)
    best, worst = ordered[:number], ordered[len(ordered) - number :]
    return [_shown(one, "best") for one in best] + [_shown(one, "worst") for one in worst]


def _is_rl(run: RunLog) -> bool:
    return any("reward" in record for record in run.metrics)


def _shown(record: Mapping[str, Any], which: str) -> ShownSample:
    terms = ", ".join(f"{name} {value:.3g}" for name, value in record["terms"].items())
    advantage = "" if record["advantage"] is None else f"advantage {record['advantage']:+.3g}"
    words = (
        f"{which} of step {record['step']:,}",
        f"reward {record['reward']:.3g} ({terms})",
        advantage,
        f"{record['num_tokens']:,} tokens",
        _ENDS.get(record["finished"], ""),
    )
    return ShownSample(f"{record['question']}\n", record["reply"], note=", ".join(filter(None, words)))


def _rewards(run: RunLog) -> Figure | None:
    curves = {"all": series(run, "reward")} | _by_label(run, "reward_by_source")
    if len(curves) == 2:
        curves = {"all": curves["all"]}
    caption = "Mean reward of the answers that are trained on, per rollout."
    if len(curves) > 1:
        caption += " The others are each source's prompts."
    return _figure(run, "reward", "Reward", caption, "reward", curves, wide=True)


def _reward_terms(run: RunLog) -> Figure | None:
    curves = _by_label(run, "reward_terms")
    if len(curves) < 2:
        return None
    return _figure(
        run, "reward-terms", "Terms of the reward", "Mean value of each, without its weight.", "value", curves
    )


def _entropy(run: RunLog) -> Figure | None:
    caption = "Of the distribution that answers are sampled from. A fall to nothing ends exploration."
    return plot_series(run, "entropy", "Entropy of the policy", caption, "nats/token", zero=True)


def _reference_kl(run: RunLog) -> Figure | None:
    return plot_series(
        run, "reference_kl", "Divergence from the reference", "KL, estimator k3.", "nats/token", zero=True
    )


def _gap(run: RunLog) -> Figure | None:
    curves = _named(run, {"mean": "gap_mean", "99th percentile": "gap_p99", "max": "gap_max"})
    caption = "Absolute difference of log-probabilities between the engine that sampled and the trainer."
    return _figure(run, "gap", "Gap between engine and trainer", caption, "nats/token", curves, log=True)


def _clipped(run: RunLog) -> Figure | None:
    curves = _named(run, {"clipped": "clip_share", "masked": "masked_share"})
    return _figure(
        run, "clipped", "Clipped and masked tokens", "Tokens that give no gradient.", "share of tokens", curves
    )


def _groups(run: RunLog) -> Figure | None:
    curves = _named(run, {"equal groups": "equal_share", "cut answers": "answers_cut_share", "stale": "stale_share"})
    caption = "Groups whose rewards are all equal; answers cut at max_new_tokens; answers begun under earlier weights."
    return _figure(run, "groups", "Groups and answers", caption, "share", curves)


def _lengths(run: RunLog) -> Figure | None:
    caption = "Mean length of the answers, reasoning included."
    return plot_series(run, "answer_tokens", "Length of answers", caption, "tokens", zero=True)


def _reward_against_length(run: RunLog) -> Figure | None:
    steps = steps_written(run.directory.rollouts)[-_NUM_STEPS:]
    records = [one for step in steps for one in read_samples(run.directory.rollouts, step)]
    points = [(one["num_tokens"], one["reward"], one["finished"]) for one in records if one["reward"] is not None]
    if not points:
        return None
    points = points[:: -(-len(points) // _MAX_DOTS)]
    lengths, rewards = np.array([point[:2] for point in points], dtype=float).T
    with drawing("reward-length", 2.55, wide=False) as plot:
        plot.axes.set(xlabel="tokens of the answer", ylabel="reward")
        is_cut = np.array([finished == "length" for *_, finished in points])
        for chosen, color, label in ((~is_cut, SERIES[0], "ended"), (is_cut, SERIES[1], "cut")):
            if chosen.any():
                plot.axes.scatter(lengths[chosen], rewards[chosen], s=7, color=color, alpha=0.4, label=label)
        draw_legend(plot.axes)
    words = f"steps {steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"step {steps[0]:,}"
    caption = f"Answers of {words}"
    if np.ptp(lengths) and np.ptp(rewards):
        caption += f"; correlation {np.corrcoef(lengths, rewards)[0, 1]:+.2f}"
    return Figure("Reward against length", f"{caption}.", plot.svg)


def step_seconds(records: Sequence[Mapping[str, Any]]) -> dict[str, "np.ndarray"]:
    """Where the time of steps with a rollout went: seconds by part, [step] each."""
    rows = [one for one in records if {"rollout_seconds", "step_seconds", "data_seconds"} <= one.keys()]
    rollout, scoring, whole, data = (
        np.array([one.get(name, 0.0) for one in rows], dtype=float)
        for name in ("rollout_seconds", "scoring_seconds", "step_seconds", "data_seconds")
    )
    return {
        "rollout": rollout,
        "scoring": scoring,
        "waiting": (data - rollout - scoring).clip(min=0),
        "training": (whole - data).clip(min=0),
    }


def _seconds(run: RunLog) -> Figure | None:
    records = [one for one in run.metrics if "rollout_seconds" in one]
    parts = step_seconds(records[-_MAX_BARS:])
    if not len(parts["rollout"]):
        return None
    with drawing("step-seconds", 2.9) as plot:
        plot.axes.set(xlabel="step", ylabel="seconds")
        places, below = np.arange(len(parts["rollout"])), np.zeros(len(parts["rollout"]))
        for (name, values), color in zip(parts.items(), SERIES, strict=True):
            plot.axes.bar(places, values, bottom=below, width=0.9, color=color, label=name)
            below = below + values
        shown = [one["step"] for one in records if {"step_seconds", "data_seconds"} <= one.keys()][-len(places) :]
        ticks = places[:: max(1, len(places) // 8)]
        plot.axes.set_xticks(ticks, [f"{shown[place]:,}" for place in ticks])
        draw_legend(plot.axes)
    caption = "Steps that began with a rollout: sampling and rewarding, log-probabilities of reference and policy, "
    return Figure("Seconds of a step", caption + "waiting for other ranks, training.", plot.svg, wide=True)


def _named(run: RunLog, names: Mapping[str, str]) -> dict[str, tuple["np.ndarray", "np.ndarray"]]:
    return {label: series(run, name) for label, name in names.items()}


def _by_label(run: RunLog, name: str) -> dict[str, tuple["np.ndarray", "np.ndarray"]]:
    """A curve for each label of a metric that has several."""
    labels = dict.fromkeys(label for record in run.metrics for label in record.get(name, ()))
    curves = {}
    for label in list(labels)[: _MAX_CURVES - 1]:
        points = [(one["tokens"], one[name][label]) for one in run.metrics if label in one.get(name, ())]
        tokens, values = np.array(points, dtype=float).T
        curves[label] = (tokens, values)
    return curves


def _figure(
    run: RunLog,
    name: str,
    title: str,
    caption: str,
    label: str,
    curves: Mapping[str, tuple["np.ndarray", "np.ndarray"]],
    *,
    wide: bool = False,
    log: bool = False,
) -> Figure | None:
    """Curves in one plot; None if all are empty."""
    curves = {name: (tokens, values) for name, (tokens, values) in curves.items() if len(values)}
    if not curves:
        return None
    with plot_over_tokens(run, f"rl-{name}", label, wide=wide) as plot:
        for number, (curve, (tokens, values)) in enumerate(curves.items()):
            color, dashed = SERIES[number % len(SERIES)], number >= len(SERIES)
            draw_curve(plot.axes, tokens, values, color=color, dashed=dashed, label=curve)
        if log and all((values > 0).all() for _, values in curves.values()):
            plot.axes.set_yscale("log")
            plot.axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            plot.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
            plot.axes.yaxis.set_minor_formatter(NullFormatter())
        elif not log:
            limit_spikes(plot.axes, np.concatenate([values for _, values in curves.values()]))
        if len(curves) > 1:
            draw_legend(plot.axes)
    return Figure(title, caption, plot.svg, wide=wide)
