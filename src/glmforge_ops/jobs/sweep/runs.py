"""The runs of a sweep: every point's whole configuration, checked before anything is written or submitted.

Each point is a run of its own: its name is the sweep's with the point's number (`lr-003`), and so are its directory
(beside the one that a run without the sweep has) and every other place that it writes to. Two points that come to the
same run are a mistake: a key that a later setting replaces, or a value that the configuration had already.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.config.load import load_config
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge_ops.jobs.sweep.points import Point

PLACES = ("checkpoint.dir", "observe.tensorboard_dir")
"""Where a run writes besides output_dir, if it is told to."""


_OWN: dict[str, Any] = {"name": True, "output_dir": True, "checkpoint": {"dir"}, "observe": {"tensorboard_dir"}}
"""What differs between points by itself."""


@dataclass(frozen=True)
class PointRun:
    """A point and the configuration of its run."""

    point: Point
    name: str
    config: RunConfig


def point_name(sweep: str, task: int) -> str:
    """Of its job, its run and its directory: 'lr-003'."""
    return f"{sweep}-{task:03d}"


def check_points(
    name: str,
    config: str | Path,
    overrides: Sequence[str],
    points: Sequence[Point],
    show: Callable[[int], None] = lambda done: None,
) -> list[PointRun]:
    """The runs of all points; `show` is told how many are checked.

    Raises `ConfigError`, which names the first point that cannot be, or two that are the same or write to one place.
    """
    base = load_config(config, overrides)  # a mistake that all points share is told once, without a point's number
    runs = []
    for point in points:
        runs.append(_check_point(name, config, overrides, point, base))
        show(len(runs))
    _refuse_same_runs(runs)
    _refuse_same_places(runs)
    return runs


def _check_point(sweep: str, config: str | Path, overrides: Sequence[str], point: Point, base: RunConfig) -> PointRun:
    name = point_name(sweep, point.task)
    try:
        own = load_config(config, [*overrides, *point.overrides, *_own_places(base, name, point)])
    except ConfigError as error:
        raise ConfigError(f"point {point.task} ({point}): {error}") from None
    return PointRun(point, name, own)


def _own_places(base: RunConfig, name: str, point: Point) -> list[str]:
    """Overrides that give the point a name and places of its own; what the sweep itself sets is left."""
    places: dict[str, object] = {"name": name, "output_dir": base.output_dir.with_name(name)}
    for key, value in zip(PLACES, (base.checkpoint.dir, base.observe.tensorboard_dir), strict=True):
        if value is not None:
            places[key] = value / name
    return [
        f"{key}={json.dumps(str(value), ensure_ascii=False)}"
        for key, value in places.items()
        if key not in point.settings
    ]


def _refuse_same_runs(runs: Sequence[PointRun]) -> None:
    seen: dict[str, PointRun] = {}
    for run in runs:
        other = seen.setdefault(run.config.model_dump_json(exclude=_OWN), run)
        if other is not run:
            raise ConfigError(
                f"points {other.point.task} ({other.point}) and {run.point.task} ({run.point}) are the same run; "
                "take one of them out, or look for a setting that another one replaces"
            )


def _refuse_same_places(runs: Sequence[PointRun]) -> None:
    seen: dict[Path, PointRun] = {}
    for run in runs:
        config = run.config
        for place in {config.output_dir, config.checkpoint.dir, config.observe.tensorboard_dir} - {None}:
            assert place is not None
            other = seen.setdefault(place.absolute(), run)
            if other is not run:
                raise ConfigError(
                    f"points {other.point.task} and {run.point.task} would both write to {place}; leave output_dir "
                    "out of the sweep: each point has its own by itself"
                )
