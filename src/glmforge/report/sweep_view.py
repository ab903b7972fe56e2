"""What a page of a sweep is drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass

from glmforge.report.page import Tile

NUM_NAMED = 4
"""The best runs, which have a colour of their own."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep; `measure` is None if it has none yet."""

    name: str
    settings: dict[str, float | str]
    words: list[str]
    """A cell for each column of the table after the name."""
    measure: float | None
    tokens: list[float]
    losses: list[float]


@dataclass(frozen=True)
class SweepView:
    """A sweep, the best run first."""

    name: str
    lead: str
    settings: list[str]
    """Keys of those that differ."""
    measure: str
    """What the runs are compared by, with its unit."""
    larger_is_better: bool
    columns: list[tuple[str, bool]]
    """Title, and whether it holds numbers, of each column after the name."""
    runs: Sequence[SweepRun]
    tiles: list[Tile]
