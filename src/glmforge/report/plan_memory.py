"""The memory of a plan as stacked bars: a row for each place in the pipeline, a colour for each category."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from glmforge.plan.layout import stages_of_pp_rank
from glmforge.plan.memory.estimate import PlaceMemory
from glmforge.plan.memory.purposes import Purpose, purposes_in
from glmforge.plan.report import PlanReport


class Part(NamedTuple):
    """A category in a bar: its width in percent of the track, and its bytes in words."""

    percent: float
    title: str


@dataclass(frozen=True)
class Row:
    """A bar with its words."""

    name: str
    holds: str
    parts: list[Part]
    value: str


@dataclass(frozen=True)
class MemoryBars:
    """All places, and the device's memory as a mark on the same track."""

    source: str
    categories: list[str]
    rows: list[Row]
    device: str
    device_percent: float


def memory_bars(report: PlanReport) -> MemoryBars:
    """The track ends a little beyond the device's memory, or beyond the peak if that is more."""
    memory, device = report.memory, report.machine.accelerator
    purposes = purposes_in(place.at_peak for place in memory.estimate.places)
    full = max(memory.estimate.peak, device.memory_bytes) * 1.02
    return MemoryBars(
        memory.source,
        [str(purpose) for purpose in purposes],
        [_row(report, place, purposes, full) for place in memory.estimate.places],
        f"{device.memory_bytes / 1e9:g} GB",
        100 * device.memory_bytes / full,
    )


def _row(report: PlanReport, place: PlaceMemory, purposes: Sequence[Purpose], full: float) -> Row:
    sizes = ((purpose, place.at_peak[purpose]) for purpose in purposes)
    parts = [Part(round(100 * size / full, 3), f"{purpose}: {size / 1e9:,.2f} GB") for purpose, size in sizes]
    held = "; ".join(stage.words for stage in stages_of_pp_rank(report.config, report.layout, place.pp_rank))
    return Row(f"place {place.pp_rank}", held, parts, f"{place.peak / 1e9:,.1f} GB")
