"""The report's plot of benchmarks: scores over tokens, with their intervals at 95 %.

Scores that the run measured itself (`observe.benchmarks`) and those of `glmforge evaluate --watch` are curves of their
own: they may be of other numbers of items, or asked in another way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glmforge.errors import DataError
from glmforge.evaluate.result import RESULT, read_result
from glmforge.files import kind_of, shown
from glmforge.observe.run import RunLog
from glmforge.report.canvas import SERIES, Figure, draw_legend, plot_over_tokens


class ScorePoint(NamedTuple):
    """A score, and its interval where there is one."""

    tokens: int
    score: float
    low: float
    high: float


@dataclass(frozen=True)
class _Curve:
    points: list[ScorePoint]
    chance: float | None = None


def benchmark_scores(run: RunLog, results: Path | None = None) -> Figure | None:
    """A curve per benchmark.

    Args:
        results: directory with results of checkpoints; None takes `evaluations` in the run, if it is there.

    Raises:
        DataError: `results` has none, or a result in it is damaged.
    """
    curves = {**_measured(run), **_evaluated(run, results)}
    if not curves:
        return None
    with plot_over_tokens(run, "benchmarks", "score", wide=True) as plot:
        for number, (name, curve) in enumerate(curves.items()):
            color, style = SERIES[number % len(SERIES)], "-" if number < len(SERIES) else "--"
            tokens, scores, lows, highs = np.array(sorted(curve.points), dtype=float).T
            around = np.stack((scores - lows, highs - scores)).clip(min=0)
            plot.axes.errorbar(
                tokens,
                scores,
                around,
                linestyle=style,
                color=color,
                marker="o",
                markersize=3.5,
                capsize=2,
                elinewidth=1,
                label=name,
            )
            if curve.chance:  # of open questions it is 0
                plot.axes.axhline(curve.chance, color=color, linestyle=":", linewidth=1)
        draw_legend(plot.axes)
    caption = "Score of each benchmark with its interval at 95 %. Items are the same at every point of a curve."
    if any(curve.chance for curve in curves.values()):
        caption += " Dotted: what guessing scores."
    return Figure("Benchmarks", caption, plot.svg, wide=True)


def _measured(run: RunLog) -> dict[str, _Curve]:
    """What the run measured itself."""
    curves: dict[str, _Curve] = {}
    for record in run.benchmarks:
        if "benchmark_score" in record:
            score: float = record["benchmark_score"]
            low: float = record.get("benchmark_low", score)
            high: float = record.get("benchmark_high", score)
            point = ScorePoint(record["tokens"], score, low, high)
            curves.setdefault(record["benchmark"], _Curve([])).points.append(point)
    return curves


def _evaluated(run: RunLog, results: Path | None) -> dict[str, _Curve]:
    """What the run's checkpoints scored when they were evaluated."""
    curves: dict[str, _Curve] = {}
    for directory in _result_directories(run, results):
        result = read_result(directory)
        if result.tokens is None:
            continue
        for one in result.scores:
            if one.score is not None:
                low, high = (one.score, one.score) if one.interval is None else (one.interval.low, one.interval.high)
                curve = curves.setdefault(f"{one.benchmark}, checkpoints", _Curve([], one.chance))
                curve.points.append(ScorePoint(result.tokens, one.score, low, high))
    return curves


def _result_directories(run: RunLog, results: Path | None) -> Iterator[Path]:
    root = results or run.directory.evaluations
    found = [path for path in sorted(root.glob("step-*")) if kind_of(path / RESULT, error=DataError) == "file"]
    if results is not None and not found:
        raise DataError(f"{shown(results)}: has no results step-*/{RESULT}; evaluate checkpoints with --watch first")
    yield from found
