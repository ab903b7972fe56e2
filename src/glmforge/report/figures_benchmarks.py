"""The report's plot of benchmarks: scores over tokens, with their intervals at 95 %.

Scores that the run measured itself (`observe.benchmarks`) and those of `glmforge evaluate --watch` are separate curves:
they may be of other numbers of items, or asked in another way.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glmforge.errors import DataError
from glmforge.evaluate.result import RESULT, read_result
from glmforge.files import kind_of, shown
from glmforge.observe.run import RunLog
from glmforge.report.canvas import SERIES, Figure, draw_legend, plot_over_tokens


class ScorePoint(NamedTuple):
    """A score with its interval; without one it is the score itself."""

    tokens: int
    score: float
    low: float
    high: float
    chance: float = 0.0


def benchmark_scores(run: RunLog, results: Path | None = None) -> Figure | None:
    """A curve per benchmark.

    Args:
        results: directory with results of checkpoints; None takes `evaluations` in the run, if it is there.

    Raises:
        DataError: `results` has none, or a result in it is damaged.
    """
    curves = score_curves(run, results)
    if not curves:
        return None
    with plot_over_tokens(run, "benchmarks", "score", wide=True) as plot:
        for number, (name, points) in enumerate(curves.items()):
            color, style = SERIES[number % len(SERIES)], "-" if number < len(SERIES) else "--"
            tokens, scores, lows, highs, (chance, *_) = np.array(points, dtype=float).T
            around = np.stack((scores - lows, highs - scores)).clip(min=0)
            line: dict[str, Any] = {"linestyle": style, "color": color, "marker": "o", "markersize": 3.5}
            plot.axes.errorbar(tokens, scores, around, **line, capsize=2, elinewidth=1, label=name)
            if chance:
                plot.axes.axhline(chance, color=color, linestyle=":", linewidth=1)
        draw_legend(plot.axes)
    caption = "Score of each benchmark with its interval at 95 %. Items are the same at every point of a curve."
    if any(points[0].chance for points in curves.values()):
        caption += " Dotted: the score of guessing."
    return Figure("Benchmarks", caption, plot.svg, wide=True)


def score_curves(run: RunLog, results: Path | None) -> dict[str, list[ScorePoint]]:
    """By benchmark: what the run measured itself, and what its checkpoints scored when they were evaluated."""
    curves: dict[str, list[ScorePoint]] = defaultdict(list)
    for record in run.benchmarks:
        if "benchmark_score" in record:
            score: float = record["benchmark_score"]
            low: float = record.get("benchmark_low", score)
            high: float = record.get("benchmark_high", score)
            curves[record["benchmark"]].append(ScorePoint(record["tokens"], score, low, high))
    root = results or run.directory.evaluations
    found = [path for path in sorted(root.glob("step-*")) if kind_of(path / RESULT, error=DataError) == "file"]
    if results is not None and not found:
        raise DataError(f"{shown(results)}: has no results step-*/{RESULT}; evaluate checkpoints with --watch first")
    for result in map(read_result, found):
        for one in result.scores:
            if result.tokens is not None and one.score is not None:
                ends = (one.interval.low, one.interval.high) if one.interval else (one.score, one.score)
                point = ScorePoint(result.tokens, one.score, *ends, one.chance or 0.0)
                curves[f"{one.benchmark}, checkpoints"].append(point)
    return {name: sorted(points) for name, points in curves.items()}
