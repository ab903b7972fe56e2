"""The drawings of a corpus report: how much is left after each stage, and how lengths, languages, scores are spread."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from glmforge.observe.units import format_bytes, format_count
from glmforge.report.canvas import MUTED, SERIES, Figure, drawing

_SHOWN_LANGUAGES = 15


def draw_corpus_figures(stages: Sequence[dict[str, Any]]) -> list[Figure]:
    """All drawings that have something to show; `stages` as in `report.json`."""
    last = stages[-1]["statistics"]
    figures = [_left(stages), _lengths(stages), _languages(last)]
    figures += [_score(name, bins) for name, bins in last["scores"].items() if sum(bins)]
    return [figure for figure in figures if figure is not None]


def _left(stages: Sequence[dict[str, Any]]) -> Figure:
    names = [stage["kind"] for stage in stages]
    left = [stage["statistics"]["written"]["bytes"] for stage in stages]
    with drawing("left", 3.2) as plot:
        bars = plot.axes.bar(range(len(left)), left, width=0.6, color=SERIES[0])
        plot.axes.bar_label(bars, [format_bytes(value) for value in left], padding=2, color=MUTED)
        plot.axes.set_xticks(range(len(names)), names)
        plot.axes.set(ylabel="text", ylim=(0, 1.12 * max([*left, 1])))
        plot.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    return Figure("What is left", "Bytes of text after each stage.", plot.svg, wide=True)


def _lengths(stages: Sequence[dict[str, Any]]) -> Figure | None:
    first, last = (_by_exponent(stage["statistics"]["lengths"]) for stage in (stages[0], stages[-1]))
    if not first and not last:
        return None
    exponents = range(min([*first, *last]), max([*first, *last]) + 1)
    with drawing("lengths", 2.55, wide=False) as plot:
        for counts, color, label in ((first, SERIES[1], stages[0]["kind"]), (last, SERIES[0], "at the end")):
            values = [counts.get(exponent, 0) for exponent in exponents]
            plot.axes.stairs(values, [*exponents, exponents[-1] + 1], color=color, label=label)
        plot.axes.set(xlabel="bytes of text", ylabel="documents")
        plot.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(2.0**value)))
        plot.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
        plot.axes.legend()
    return Figure("Lengths", "Documents by length, after the first stage and at the end; each step doubles.", plot.svg)


def _by_exponent(lengths: dict[str, int]) -> dict[int, int]:
    return {int(exponent): count for exponent, count in lengths.items()}


def _languages(last: dict[str, Any]) -> Figure | None:
    ordered = sorted(last["languages"].items(), key=lambda item: (-item[1]["bytes"], item[0]))[:_SHOWN_LANGUAGES]
    if not ordered:
        return None
    with drawing("languages", 2.55, wide=False) as plot:
        plot.axes.bar(range(len(ordered)), [flow["bytes"] for _, flow in ordered], width=0.6, color=SERIES[0])
        plot.axes.set_xticks(range(len(ordered)), [name for name, _ in ordered], rotation=45, ha="right")
        plot.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    return Figure("Languages", f"Output text, the {len(ordered)} largest.", plot.svg)


def _score(name: str, bins: Sequence[int]) -> Figure:
    with drawing(f"score-{name}", 2.55, wide=False) as plot:
        plot.axes.stairs(bins, np.linspace(0, 1, len(bins) + 1), fill=True, color=SERIES[0])
        plot.axes.set(xlabel=f"score: {name}", ylabel="documents")
        plot.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    return Figure(f"Score: {name}", "Output documents.", plot.svg)
