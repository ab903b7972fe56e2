"""The picture of a schedule: every setting that changes over a run, above one axis of tokens.

GLM-4.5 trains 15 trillion tokens in its first phase and 100 billion in its last: drawn to scale, all that mid-training
changes would happen in the last five percent, the batch ramp in the first two. So where a phase would be too narrow to
read, the axis is a chain of stretches, cut where phases, the ramp and the warm-up end. Each is linear, its width goes
with the cube root of its tokens, and the strip on top shows the phases to scale. The axis says which of the two it is.

The page takes the drawing as SVG in its own colours (`glmforge.report.canvas`); a PNG or SVG file has the page's light
colours.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from glmforge.observe.units import format_count
from glmforge.report.canvas import INK, MUTED, RULE, SERIES, STYLE, to_svg
from glmforge.report.schedule import PlannedPhase, Schedule, rate_words, settings_words

_READABLE = 0.09
"""A phase narrower than this share of the drawing has no room for its settings."""
_POINTS = 80
_STRENGTHS = (0.7, 0.4, 0.2)
_ROW = 0.19
_LEGEND_COLUMNS = 4
_INCH_PER_LETTER = 0.068


@dataclass(frozen=True)
class Palette:
    """Colours of a drawing."""

    ink: str = INK
    muted: str = MUTED
    rule: str = RULE
    series: tuple[str, ...] = SERIES

    def source(self, number: int) -> tuple[str, float]:
        """Colour and opacity of a source: each colour strong, then each paler."""
        strength = _STRENGTHS[number // len(self.series) % len(_STRENGTHS)]
        return self.series[number % len(self.series)], strength


_LIGHT = Palette("#1c2126", "#626b75", "#dfe3e7", ("#2a62b4", "#cf6a1d", "#2f8058", "#8152a8"))
_PAPER = "#ffffff"


class TokenAxis:
    """Places tokens on the drawing, from 0 at its left edge to 1 at its right.

    Attributes:
        marks: tokens at which a stretch ends, the run's beginning included.
        to_scale: whether all stretches together are one linear axis.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.marks, shares = _stretches(schedule)
        tokens = np.diff(self.marks)
        self.to_scale = bool(np.allclose(shares, tokens / tokens.sum()))
        self._places = np.concatenate([[0.0], np.cumsum(shares)])

    def __call__(self, tokens: float) -> float:
        return float(np.interp(tokens, self.marks, self._places))

    def points(self) -> NDArray[np.int64]:
        """Tokens to sample a curve at: as many in each stretch."""
        stretches = [np.linspace(a, b, _POINTS, endpoint=False) for a, b in pairwise(self.marks)]
        return np.append(np.concatenate(stretches), self.marks[-1]).astype(np.int64)


def _stretches(schedule: Schedule) -> tuple[list[int], NDArray[np.float64]]:
    """Where the axis is cut, and the share of the drawing that each stretch gets."""
    phases = schedule.phases
    linear = np.array([phase.tokens / schedule.tokens for phase in phases])
    floor = min(_READABLE, 0.7 / len(phases))
    if linear.min() >= floor:
        return [0, *(phase.stop for phase in phases)], linear
    marks, shares = [0], list[NDArray[np.float64]]()
    for phase in phases:
        cuts = sorted({cut for cut in _cuts(schedule, phase) if phase.start < cut < phase.stop} | {phase.stop})
        widths = np.diff([phase.start, *cuts]) ** (1 / 3)
        marks, shares = [*marks, *cuts], [*shares, widths]
    total = sum(widths.sum() for widths in shares)
    raised = [widths / widths.sum() * max(widths.sum() / total, floor) for widths in shares]
    flat = np.concatenate(raised)
    return marks, flat / flat.sum()


def _cuts(schedule: Schedule, phase: PlannedPhase) -> Iterable[int]:
    """Tokens inside a phase at which something ends: the warm-up, the batch ramp."""
    yield schedule.warmup_tokens
    yield phase.spans[-1].start


def draw_schedule(schedule: Schedule, palette: Palette | None = None) -> Figure:
    """The whole picture; colours are stand-ins for a page's unless a palette is given."""
    palette = palette or Palette()
    style = {key: _recolored(value, palette) for key, value in STYLE.items()}
    num_rows = len(_cells(schedule.phases[0]))
    heights = [0.16, 0.62, 1.35, 1.15, 1.0, 1.75, _ROW * num_rows + 0.05]
    legend = 0.2 * math.ceil(len(schedule.sources) / _LEGEND_COLUMNS) + 0.2
    with matplotlib.rc_context(style):
        canvas = Figure(figsize=(10.6, sum(heights) + legend + 1.6))
        height = canvas.get_figheight()
        grid = canvas.add_gridspec(
            len(heights), 1, height_ratios=heights, hspace=0.28, left=0.085, right=0.975, top=1 - 0.22 / height,
            bottom=(0.62 + legend) / height,
        )  # fmt: skip
        drawing = _Drawing(schedule, TokenAxis(schedule), palette, canvas)
        panels = [canvas.add_subplot(grid[row]) for row in range(len(heights))]
        drawing.draw(panels)
    return canvas


def schedule_svg(schedule: Schedule) -> str:
    """The picture as an inline element of a page, in its colours."""
    return to_svg(draw_schedule(schedule), "schedule")


def save_schedule(schedule: Schedule, path: Path) -> None:
    """Write the picture alone, as what the suffix of `path` says: .png or .svg."""
    canvas = draw_schedule(schedule, _LIGHT)
    with matplotlib.rc_context({"svg.hashsalt": "schedule", "svg.fonttype": "path"}):
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        canvas.savefig(path, dpi=160, facecolor=_PAPER, transparent=False, metadata=metadata)


def _recolored(value: object, palette: Palette) -> object:
    return {INK: palette.ink, MUTED: palette.muted, RULE: palette.rule}.get(value, value)  # type: ignore[call-overload]


@dataclass
class _Drawing:
    """The panels of one picture."""

    schedule: Schedule
    place: TokenAxis
    palette: Palette
    canvas: Figure

    def draw(self, panels: list[Axes]) -> None:
        strip, names, rate, batch, sequence, mixture, cells = panels
        self._strip(strip)
        self._names(names)
        self._learning_rate(rate)
        self._steps(batch, [(s.start, s.stop, s.batch_tokens) for p in self.schedule.phases for s in p.spans])
        batch.set_ylabel("tokens per step")
        self._steps(sequence, [(p.start, p.stop, p.config.seq_len) for p in self.schedule.phases])
        self._sequence_ticks(sequence)
        self._mixture(mixture)
        self._cells(cells)
        for axes in (rate, batch, sequence, mixture, cells):
            self._bands(axes)
        self._token_ticks(cells)
        self.canvas.align_ylabels([rate, batch, sequence, mixture])

    def _strip(self, axes: Axes) -> None:
        """The phases to scale."""
        axes.set(xlim=(0, self.schedule.tokens), ylim=(0, 1))
        axes.axis("off")
        for number, phase in enumerate(self.schedule.phases):
            opacity = 0.55 if number % 2 else 0.9
            axes.axvspan(phase.start, phase.stop, color=self.palette.muted, alpha=opacity, linewidth=0)
        axes.annotate(
            "to scale", (0, 0.5), (-6, 0), textcoords="offset points", ha="right", va="center", color=self.palette.muted
        )

    def _names(self, axes: Axes) -> None:
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.axis("off")
        for phase in self.schedule.phases:
            left, right = self.place(phase.start), self.place(phase.stop)
            words = _wrapped(phase.config.name, (right - left) * 9.5)
            text = f"{words}\n{format_count(phase.tokens, trim=True)}\n{phase.config.num_steps:,} steps"
            axes.text((left + right) / 2, 0, text, ha="center", va="bottom", fontsize=7.5, linespacing=1.15)

    def _learning_rate(self, axes: Axes) -> None:
        tokens = np.union1d(self.place.points(), [self.schedule.warmup_tokens])
        rates = [self.schedule.learning_rate(int(at)) for at in tokens]
        axes.plot([self.place(at) for at in tokens], rates, color=self.palette.series[0])
        axes.set(ylabel="learning rate", ylim=(0, 1.12 * max(rates)))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_words(value)))

    def _steps(self, axes: Axes, steps: list[tuple[int, int, int]]) -> None:
        """A line of steps: from, to, height."""
        places = [self.place(at) for start, stop, _ in steps for at in (start, stop)]
        values = [value for _, _, value in steps for _ in range(2)]
        axes.plot(places, values, color=self.palette.series[0])
        axes.set_ylim(0, 1.15 * max(values))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value, trim=True)))

    def _sequence_ticks(self, axes: Axes) -> None:
        lengths = sorted({phase.config.seq_len for phase in self.schedule.phases})
        axes.set_yscale("log", base=2)
        axes.set(ylabel="sequence", ylim=(lengths[0] / 1.6, lengths[-1] * 1.6))
        axes.set_yticks(lengths, [f"{length:,}" for length in lengths])
        axes.yaxis.minorticks_off()

    def _mixture(self, axes: Axes) -> None:
        """Shares of the sources, stacked, with the larger ones in words."""
        for phase in self.schedule.phases:
            left, right, below = self.place(phase.start), self.place(phase.stop), 0.0
            for number, name in enumerate(self.schedule.sources):
                if name not in phase.draws:
                    continue
                share = phase.draws[name].share
                color, strength = self.palette.source(number)
                axes.bar(left, share, right - left, below, align="edge", color=color, alpha=strength, linewidth=0)
                if share >= 0.07:
                    middle = (left + right) / 2, below + share / 2
                    axes.text(*middle, f"{share:.0%}", ha="center", va="center", fontsize=7.5)
                below += share
        axes.set(ylabel="mixture", ylim=(0, 1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.grid(visible=False)
        self._sources()

    def _sources(self) -> None:
        """The key of the mixture, at the foot of the drawing: what the run takes of each source."""
        handles = []
        for number, name in enumerate(self.schedule.sources):
            color, strength = self.palette.source(number)
            total = self.schedule.total(name)
            epochs = "" if total.epochs is None else f", {total.epochs:.2g} epochs"
            label = f"{name}: {format_count(total.tokens, trim=True)}{epochs}"
            handles.append(Patch(color=color, alpha=strength, linewidth=0, label=label))
        title = "tokens drawn"
        if self.schedule.missing:
            title += " (from the weights; the shards do not exist yet)"
        self.canvas.legend(
            handles=handles, title=title, loc="lower left", bbox_to_anchor=(0.08, 0.0), ncols=_LEGEND_COLUMNS,
            handlelength=1.0, alignment="left",
        )  # fmt: skip

    def _cells(self, axes: Axes) -> None:
        """What is constant in a phase, a row per setting; what differs from the phase before is strong."""
        rows = list(_cells(self.schedule.phases[0]))
        axes.set(ylim=(len(rows), 0))
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
        axes.grid(visible=False)
        before: dict[str, str] = {}
        for phase in self.schedule.phases:
            middle = (self.place(phase.start) + self.place(phase.stop)) / 2
            words = _cells(phase)
            for row, (name, text) in enumerate(words.items()):
                changed = before.get(name) != text
                color, weight = (self.palette.ink, "bold") if changed and before else (self.palette.muted, "normal")
                axes.text(middle, row + 0.5, text, ha="center", va="center", fontsize=7.5, color=color, weight=weight)
            before = words

    def _bands(self, axes: Axes) -> None:
        """Every other phase shaded, and their borders."""
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        for number, phase in enumerate(self.schedule.phases):
            left, right = self.place(phase.start), self.place(phase.stop)
            if number % 2:
                axes.axvspan(left, right, color=self.palette.rule, alpha=0.4, linewidth=0, zorder=0)
            if number:
                axes.axvline(left, color=self.palette.muted, linewidth=0.6, linestyle=(0, (1, 1.5)), zorder=1)

    def _token_ticks(self, axes: Axes) -> None:
        marks = self.place.marks if not self.place.to_scale else list(np.linspace(0, self.schedule.tokens, 6))
        places = [self.place(at) for at in marks]
        labels = [format_count(at, trim=True) for at in marks]
        axes.tick_params(axis="x", length=3)
        axes.set_xticks(places, _not_too_close(places, labels))
        note = "" if self.place.to_scale else "; not to scale: each stretch between two marks is linear"
        axes.set_xlabel(f"tokens trained{note}")


def _cells(phase: PlannedPhase) -> dict[str, str]:
    config = phase.config
    capacity = {} if config.capacity_factor is None else {"capacity": f"{config.capacity_factor:g}"}
    mask = "documents" if config.document_mask else "none"
    return {"packing": config.packing.replace("_", " "), "mask": mask, **settings_words(phase), **capacity}


def _not_too_close(places: list[float], labels: list[str]) -> list[str]:
    """Labels, without those that would touch the one before them; the last one always stays."""
    kept, last = [], -1.0
    for index, (place, label) in enumerate(zip(places, labels, strict=True)):
        is_free = place - last >= 0.027 and places[-1] - place >= 0.027
        kept.append(label if is_free or index == len(places) - 1 else "")
        last = place if kept[-1] else last
    return kept


def _wrapped(name: str, inches: float) -> str:
    """A phase's name on lines that fit, broken after underscores, hyphens and dots."""
    room, lines = max(6, int(inches / _INCH_PER_LETTER)), [""]
    for letter in name:
        lines[-1] += letter
        if letter in "_-." and len(lines[-1]) > room / 2 and len(name) > room:
            lines.append("")
    return "\n".join(line for line in lines if line)
