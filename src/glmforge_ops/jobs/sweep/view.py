"""A sweep's results as its page is drawn from them."""

from collections.abc import Sequence
from typing import Any

from glmforge.observe.units import counted
from glmforge.report.page import Tile
from glmforge.report.sweep_view import SweepRun, SweepView
from glmforge_ops.jobs.sweep.points import value_words
from glmforge_ops.jobs.sweep.record import SweepRecord
from glmforge_ops.jobs.sweep.results import LARGER_IS_BETTER, Result, default_measure, ranked, sort_key
from glmforge_ops.jobs.sweep.words import COLUMNS, cells_of

_TITLES = {
    "loss": "last loss, nats/token",
    "best_loss": "best loss, nats/token",
    "held_out": "held-out loss, bits/byte",
    "tokens_per_second": "tokens/s",
    "seconds": "training time, s",
    "step": "steps",
}


def view_of(record: SweepRecord, results: Sequence[Result], sort: str | None = None) -> SweepView:
    """The best first, by a measure. Raises `LaunchError` for a column that the sweep does not have."""
    settings = record.differing()
    key = sort_key(results, sort or default_measure(results), settings)
    measure = key if key in _TITLES else default_measure(results)
    rows = ranked(results, key)
    return SweepView(
        name=record.name,
        lead=f"{counted(len(results), 'point')} of {record.config}, made {record.created:%Y-%m-%d %H:%M} UTC",
        settings=settings,
        measure=_TITLES[measure],
        larger_is_better=measure in LARGER_IS_BETTER,
        columns=[*((setting, False) for setting in settings), *COLUMNS],
        runs=[_run(row, settings, measure) for row in rows],
        tiles=_tiles(results, settings, measure),
    )


def _run(result: Result, settings: Sequence[str], measure: str) -> SweepRun:
    return SweepRun(
        name=result.job,
        settings={key: _plain(result.settings[key]) for key in settings if key in result.settings},
        words=cells_of(result, settings),
        measure=result.value(measure),
        tokens=result.losses.tokens,
        losses=result.losses.values,
    )


def _tiles(results: Sequence[Result], settings: Sequence[str], measure: str) -> list[Tile]:
    best = ranked(results, measure)[0]
    value = best.value(measure)
    finished = sum(result.state == "finished" for result in results)
    tiles = [Tile("Finished", f"{finished:,}", f"of {counted(len(results), 'point')}")]
    if value is not None:
        words = ", ".join(f"{key} {value_words(best.settings.get(key))}" for key in settings)
        tiles += [Tile("Best", f"{value:.4g}", _TITLES[measure]), Tile("by", best.job, words)]
    return tiles


def _plain(value: Any) -> float | str:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else value_words(value)
