"""The page of a timeline: a drawing with a row for each lane, and what its time adds up to.

The drawing is plain SVG, a rectangle for each bar with its words as a tooltip: without JavaScript, in the page's
colours. A lane with more bars than a screen has columns is drawn column by column, each in the colour of what took most
of it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from glmforge.observe.run import write_text
from glmforge.observe.units import counted, format_duration
from glmforge.report import timeline as names
from glmforge.report.goodput_spans import Use
from glmforge.report.page import Column, Summary, Tile, check_suffix, make_table, page_template
from glmforge.report.timeline import Bar, Timeline

WIDTH, _ROW, _LABELS, _TOP = 1120.0, 26, 190.0, 30
_MAX_BARS, _MAX_LANES, _MAX_MARKS = 1000, 40, 200
_TICKS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)

_COLORS = {
    Use.USEFUL.value: "series-3",
    Use.DATA.value: "series-2",
    Use.EVALUATION.value: "series-4",
    Use.SAVING.value: "series-7",
    Use.RECOMPUTE.value: "series-8",
    Use.HANG.value: "series-6",
    Use.LOAD.value: "muted",
    Use.START.value: "muted",
    Use.STOP.value: "muted",
    names.TRANSFER: "series-8",
    names.GENERATION: "series-1",
    names.SCORING: "series-5",
    names.SAVE: "series-7",
    names.FAILED_SAVE: "series-6",
    names.PROCESS: "muted",
    names.FAILED: "series-6",
}
_OTHER = "rule"


class Shape(NamedTuple):
    """A rectangle, or with `width` 0 the line of an event."""

    x: float
    y: float
    width: float
    color: str
    words: str


def write_timeline(timeline: Timeline, out: Path) -> Path:
    """Write the page (.html) or the trace (.json). Raises `ConfigError` for another suffix."""
    if out.suffix == ".json":
        write_text(out, names.trace_text(timeline))
        return out
    check_suffix(out, "--output")
    shown = timeline.lanes[:_MAX_LANES]
    begin = min(bar.begin for bar in timeline.bars)
    length = max((max(bar.end for bar in timeline.bars) - begin).total_seconds(), 1e-3)
    scale = (WIDTH - _LABELS) / length
    shapes = []
    for row, lane in enumerate(shown):
        for bar in thinned([bar for bar in timeline.bars if bar.lane == lane], length / _MAX_BARS):
            x, width = (bar.begin - begin).total_seconds() * scale + _LABELS, max(0.6, bar.seconds * scale)
            words = f"{bar.kind}, {format_duration(bar.seconds)}" + (f": {bar.words}" if bar.words else "")
            shapes.append(Shape(x, _TOP + row * _ROW, width, _COLORS.get(bar.kind, _OTHER), words))
    marks = [
        Shape((mark.time - begin).total_seconds() * scale + _LABELS, 0, 0, "ink", mark.words)
        for mark in timeline.marks[-_MAX_MARKS:]
        if 0 <= (mark.time - begin).total_seconds() <= length
    ]
    page = page_template("timeline.html").render(
        summary=_summarize(timeline, len(timeline.lanes) - len(shown)),
        shapes=shapes,
        marks=marks,
        lanes=[(lane, _TOP + row * _ROW) for row, lane in enumerate(shown)],
        ticks=[(_LABELS + at * scale, format_duration(at) if at else "0") for at in ticks(length)],
        kinds=[(kind, _COLORS.get(kind, _OTHER)) for kind in dict.fromkeys(bar.kind for bar in timeline.bars)],
        width=WIDTH,
        labels=_LABELS,
        row=_ROW,
        top=_TOP,
        height=_TOP + len(shown) * _ROW,
    )
    write_text(out, page)
    return out


def ticks(length: float) -> list[float]:
    """Seconds at which the axis has marks, at most about ten."""
    step = next((step for step in _TICKS_S if length / step <= 10), 86400 * (1 + int(length / 864000)))
    return [float(at) for at in range(0, int(length) + 1, step)]


def thinned(bars: Sequence[Bar], column_s: float) -> list[Bar]:
    """`bars`, or if they are many, one for each column in a row of one kind: of that which took most of the column."""
    if len(bars) <= _MAX_BARS:
        return list(bars)
    begin, column = min(bar.begin for bar in bars), timedelta(seconds=column_s)
    columns: dict[int, dict[str, timedelta]] = defaultdict(lambda: defaultdict(timedelta))
    for bar in bars:
        for place in range((bar.begin - begin) // column, (bar.end - begin) // column + 1):
            inside = min(bar.end, begin + (place + 1) * column) - max(bar.begin, begin + place * column)
            if inside:
                columns[place][bar.kind] += inside
    found: list[Bar] = []
    for place in sorted(columns):
        kind = max(columns[place], key=columns[place].__getitem__)
        start, end = begin + place * column, begin + (place + 1) * column
        if found and found[-1].kind == kind and found[-1].end == start:
            found[-1] = Bar(bars[0].lane, kind, found[-1].begin, end, "mostly")
        else:
            found.append(Bar(bars[0].lane, kind, start, end, "mostly"))
    return found


def sums(bars: Iterable[Bar]) -> dict[str, float]:
    """Seconds of each kind, the longest first."""
    found: dict[str, float] = defaultdict(float)
    for bar in bars:
        found[bar.kind] += bar.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _summarize(timeline: Timeline, hidden: int) -> Summary:
    own = [bar for bar in timeline.bars if bar.lane == names.TRAINING]
    by_kind, begin = sums(own), min(bar.begin for bar in timeline.bars)
    total = sum(by_kind.values()) or 1.0
    starts = [bar for bar in timeline.bars if bar.lane == names.STARTS]
    meanings = {use.value: use.meaning for use in Use} | {
        names.TRANSFER: "giving weights to servers that sample",
        names.GENERATION: "writing answers to train on, and rewarding them",
        names.SCORING: "log-probabilities of these answers",
    }
    rows = [
        [kind, format_duration(time), f"{time / total:.1%}", meanings.get(kind, "")] for kind, time in by_kind.items()
    ]
    columns = [Column("Use"), Column("Time", number=True), Column("Share", number=True), Column("What it is")]
    tables = [make_table("Where the time went", columns, rows)]
    if timeline.marks:
        told = [[f"{mark.time:%Y-%m-%d %H:%M:%S}", mark.words] for mark in timeline.marks[-_MAX_MARKS:]]
        tables.append(make_table("Events", [Column("Time (UTC)"), Column("What happened")], told))
    more = f" · {counted(hidden, 'more lane')} in the trace (--output FILE.json)" if hidden > 0 else ""
    tiles = [
        Tile("Time", format_duration(total)),
        Tile("Starts", str(len(starts))),
        Tile("Useful", f"{by_kind.get(Use.USEFUL.value, 0.0) / total:.1%}", "of the time"),
        Tile("Longest loss", next((kind for kind in by_kind if kind != Use.USEFUL.value), "none")),
    ]
    return Summary(timeline.name, f"began {begin:%Y-%m-%d %H:%M:%S} UTC{more}", tiles, tables)
