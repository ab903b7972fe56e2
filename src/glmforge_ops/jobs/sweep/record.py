"""A sweep's own directory, beside those of its points.

    jobs/lr/sweep.json     its points, and how it was asked for; written once, when all points are there
    jobs/lr/script.sh      what a scheduler was given: one array of all points
    jobs/lr/events.jsonl   submissions and cancellations
    jobs/lr-000/ ...       a job for each point

It is no job, and has no submissions: those are written to each point's job, which is then found like any other.
"""

from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from glmforge.config.launch import JobName, Launcher
from glmforge.errors import LaunchError
from glmforge.files import read_json, shown
from glmforge.observe.run import write_text
from glmforge_ops.jobs.job import JobDirectory
from glmforge_ops.jobs.sweep.points import Point, value_words

_MAX_BYTES = 1 << 26


class PointRecord(BaseModel):
    """A point of a sweep."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    task: NonNegativeInt
    job: JobName
    settings: dict[str, Any]

    def __str__(self) -> str:
        return str(Point(self.task, self.settings))


class SweepRecord(BaseModel):
    """What a sweep is; never changes. Later versions may add fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: JobName
    created: AwareDatetime
    config: str
    overrides: list[str]
    launcher: Launcher
    at_once: PositiveInt | None
    """Most points that run at the same time."""
    points: list[PointRecord]

    def differing(self) -> list[str]:
        """Keys of the settings that are not the same in all points, in the order in which they were given."""
        keys = dict.fromkeys(key for point in self.points for key in point.settings)
        words = {key: {value_words(point.settings.get(key)) for point in self.points} for key in keys}
        return [key for key in keys if len(words[key]) > 1]


class SweepDirectory:
    """Names of a sweep's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "sweep.json"
        self.own = JobDirectory(root)
        """For the script and the events, which have a job's names."""

    @property
    def name(self) -> str:
        return self.root.name

    def point(self, point: PointRecord) -> JobDirectory:
        return JobDirectory(self.root.parent / point.job)

    def write(self, record: SweepRecord) -> None:
        """A reader finds all of it or nothing."""
        write_text(self.record, record.model_dump_json() + "\n")

    def read(self) -> SweepRecord:
        """Raises `LaunchError` if there is no such sweep, or it was never written to its end, or is damaged."""
        if not self.root.is_dir():
            raise LaunchError(
                f"{shown(self.root)}: there is no such sweep; 'glmforge launch CONFIG --sweep ...' makes one"
            )
        if not self.record.exists():
            raise LaunchError(
                f"{shown(self.root)}: holds no sweep, or one that is being made, or was interrupted before it was "
                f"submitted; if so, delete it and the jobs of its points, {shown(self.name)}-000 and on, and submit it "
                "again"
            )
        record = self._parse(read_json(self.record, dict, error=LaunchError, max_bytes=_MAX_BYTES))
        if record.name != self.name:
            raise LaunchError(
                f"{shown(self.record)}: is of the sweep {record.name}; give the directory that name again"
            )
        return record

    def _parse(self, content: dict[str, Any]) -> SweepRecord:
        try:
            return SweepRecord.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise LaunchError(
                f"{shown(self.record)}: {place}: {first['msg']}; it was written by another program"
            ) from None
