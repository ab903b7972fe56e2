"""A sweep: a run for each point, made, submitted, run from here, and cancelled.

    jobs/lr/sweep.json     its points, and how it was asked for; written once, when all points are there
    jobs/lr/script.sh      what a scheduler was given: one array of all points
    jobs/lr/events.jsonl   submissions and cancellations
    jobs/lr-000/ ...       a job for each point

Every point's whole configuration is checked before anything is written. Each is a run of its own: its name is the
sweep's with the point's number (`lr-003`), and so are its directory (beside the one that a run without the sweep has)
and every other place that it writes to.

Under Slurm a sweep is one array, and each submission of a point is a task of it, `12_3`. Submitted again, an array of
those tasks follows that have not finished and are not on their way. Who was killed while submitting leaves an array
that is not noted, or not in all of its jobs: whoever submits next notes it. Elsewhere the points are run from here.
"""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, NonNegativeInt, PositiveInt

from glmforge.config.launch import JobName, LaunchConfig, Launcher
from glmforge.config.load import load_config
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError, LaunchError
from glmforge.files import shown
from glmforge.observe.job_records import FileRecord, JobDirectory, utc_now
from glmforge.observe.run import write_text
from glmforge_ops.jobs.control import cancel_all
from glmforge_ops.jobs.new_job import NewJob, make_directory, removed_on_error, run_job
from glmforge_ops.jobs.preflight import check_fit
from glmforge_ops.jobs.registry import Job, SchedulerOf
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.script.render import Script, render
from glmforge_ops.jobs.several import Report, Several, is_live, is_noted, read_record
from glmforge_ops.jobs.state import JobState
from glmforge_ops.jobs.submit import adopted, id_of_task, note_submission, submit_noted
from glmforge_ops.jobs.sweep.points import Point, value_words
from glmforge_ops.jobs.sweep.results import Result, read_results

ARRAYS = ("slurm",)
"""Launchers whose scheduler runs a sweep as one array; of the others, points are started from here."""

_MAX_NAME = 56
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{_MAX_NAME - 1}}}")
_DIGITS = 3
_OWN: dict[str, Any] = {"name": True, "output_dir": True, "checkpoint": {"dir"}, "observe": {"tensorboard_dir"}}
"""What differs between points by itself."""


class PointRecord(FileRecord):
    """A point of a sweep."""

    task: NonNegativeInt
    job: JobName
    settings: dict[str, Any]


class SweepRecord(FileRecord):
    """What a sweep is; never changes."""

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


@dataclass(frozen=True)
class NewSweep:
    """A sweep that is not written yet; `script` is that of the array, if it is one."""

    root: Path
    record: SweepRecord
    points: Sequence[Point]
    jobs: Sequence[NewJob]
    script: str | None

    def check(self, scheduler_of: SchedulerOf) -> None:
        """Raises `LaunchError` for what the scheduler would refuse."""
        launch = self.jobs[0].description.launch
        if self.script is not None:
            launch = _as_array(launch, [point.task for point in self.points], self.record.at_once)
        scheduler_of(launch.launcher).check(launch)

    def check_fit(self, gpu: str | None = None) -> str:
        """What the plan was compared with, in words. Raises `LaunchError` with the point that by plan does not fit."""
        compared = {}
        for job, point in zip(self.jobs, self.points, strict=True):
            assert job.config is not None, "points are training runs"
            try:
                compared[check_fit(job.config, job.description.launch, gpu)] = True
            except LaunchError as error:
                raise LaunchError(f"point {point.task} ({point}): {error}") from None
        return "; ".join(compared)

    def write(self) -> None:
        """Raises `LaunchError` if a name is taken; then nothing of the sweep stays."""
        name = self.root.name
        with removed_on_error() as made:
            make_directory(self.root, f"the name is taken; give another --name, or 'glmforge sweep resubmit {name}'")
            made.append(self.root)
            for job in self.jobs:
                job.write()
                made.append(job.directory.root)
            if self.script is not None:
                write_text(JobDirectory(self.root).script, self.script)
            self.record.write(self.root / "sweep.json")


def make_sweep(
    name: str | None,
    source: str,
    overrides: Sequence[str],
    points: Sequence[Point],
    launch: LaunchConfig,
    root: Path,
    at_once: int | None = None,
    template: Path | None = None,
    show: Callable[[int], None] = lambda done: None,
) -> NewSweep:
    """A sweep's jobs, checked.

    Args:
        name: None makes one of the configuration's: demo-sweep, demo-sweep-2.
        source: the configuration that all points share, with `overrides`.
        root: where jobs lie.
        at_once: most points that run at the same time; None: as many as there is room for, or one after the other
            where there is no scheduler.
        template: of each point's own script.
        show: is given the number of points that are checked.

    Raises `ConfigError`, which names the first point that cannot be, or two that are the same run or write to one
    place, and `LaunchError`.
    """
    base = load_config(source, overrides)  # a mistake that all points share is reported once, without a point's number
    name = name or _free_name(base.name, root)
    _check_options(name, launch, at_once)
    jobs = []
    for point in points:
        try:
            config = _config(f"{name}-{point.task:0{_DIGITS}d}", source, overrides, point, base)
            job = run_job(JobDirectory(root / f"{name}-{point.task:0{_DIGITS}d}"), config, launch, template)
        except ConfigError as error:
            raise ConfigError(f"point {point.task} ({point}): {error}") from None
        jobs.append(replace(job, description=job.description.model_copy(update={"part_of": name, "task": point.task})))
        show(len(jobs))
    _refuse_equal(points, [job.config for job in jobs if job.config is not None])
    record = SweepRecord(
        name=name,
        created=utc_now(),
        config=str(source),
        overrides=list(overrides),
        launcher=launch.launcher,
        at_once=at_once,
        points=[
            PointRecord(task=point.task, job=job.directory.name, settings=dict(point.settings))
            for point, job in zip(points, jobs, strict=True)
        ],
    )
    script = None
    if launch.launcher in ARRAYS:
        options = _as_array(launch, [point.task for point in points], at_once)
        description = jobs[0].description.model_copy(update={"name": name, "launch": options})
        script = render(replace(Script.of(description, root / name), task_digits=_DIGITS))
    return NewSweep(root / name, record, points, jobs, script)


class Sweep(Several):
    """A sweep that has been written."""

    def __init__(self, root: Path, scheduler_of: SchedulerOf) -> None:
        self.record = read_record(root, "sweep", SweepRecord)
        super().__init__(root, [point.job for point in self.record.points], scheduler_of)

    @property
    def is_array(self) -> bool:
        return self.record.launcher in ARRAYS

    def results(self) -> list[Result]:
        """A row for each point, by number."""
        return [_result(point, job) for point, job in zip(self.record.points, self.jobs(), strict=True)]

    def submit_array(self, *, failed_only: bool = False) -> list[str]:
        """Submit what has not finished and is not on its way; the names of those jobs.

        Raises `HeldError` while somebody else does the same.
        """
        with self.lease():
            self._note_what_was_not()
            chosen = self._chosen(failed_only=failed_only)
            if chosen:
                tasks = [point.task for point in chosen]
                scheduler = self.scheduler_of(self.record.launcher)
                launch = self.directory(chosen[0].job).read().launch
                array = array_of(tasks, self.record.at_once)
                submit_noted(scheduler, self.own, launch, lambda number: self._note(number, tasks), array=array)
        return [point.job for point in chosen]

    def run_points(self, report: Report, *, failed_only: bool = False) -> dict[str, JobState]:
        """Run what has not finished from here, as many at once as the sweep says; the state of each at the end."""
        chosen = self._chosen(failed_only=True) if failed_only else self.record.points
        return self.run_here({point.job: () for point in chosen}, self.record.at_once or 1, report)

    def cancel(self) -> list[str]:
        """Cancel every point that waits or runs; their names. Points that have not begun do not begin."""
        live = [job for job in self.jobs() if is_live(job)]
        ids = dict.fromkeys(job.submission for job in live if job.submission is not None)
        arrays = dict.fromkeys(id_.partition("_")[0] for id_ in ids) if self.is_array else ids
        cancel_all(live, self.scheduler_of(self.record.launcher), group=self.own, ids=arrays)
        return [job.name for job in live]

    def _chosen(self, *, failed_only: bool) -> list[PointRecord]:
        pairs = zip(self.record.points, self.jobs(), strict=True)
        return [point for point, job in pairs if (job.state is JobState.FAILED if failed_only else job.is_to_submit)]

    def _note(self, number: str, tasks: Sequence[int]) -> None:
        """In the sweep's events first, which say what is to be noted in the points' jobs."""
        self.own.event("submitted", f"{len(tasks)} points as {number}", submission=number, tasks=list(tasks))
        self._note_in_jobs(number, tasks)

    def _note_in_jobs(self, number: str, tasks: Sequence[int]) -> None:
        for point in self.record.points:
            job, id_ = self.directory(point.job), id_of_task(number, point.task)
            if point.task in tasks and id_ not in {submission.id for submission in job.read_submissions()}:
                note_submission(job, id_, self.record.launcher)

    def _note_what_was_not(self) -> None:
        """Of a submission that was interrupted: Slurm may have the array, or the notes may have ended in the middle."""
        noted = [event for event in self.own.read_events() if event["event"] == "submitted"]
        if noted:
            self._note_in_jobs(noted[-1]["submission"], noted[-1]["tasks"])
        scheduler = self.scheduler_of(self.record.launcher)
        if lost := adopted(self.own, [event["submission"] for event in noted], scheduler):
            ids = {id_of_task(lost, point.task): point.task for point in self.record.points}
            seen = scheduler.look(ids)
            self._note(lost, [task for id_, task in ids.items() if seen[id_].state is not State.UNKNOWN])


def array_of(tasks: Sequence[int], at_once: int | None) -> str:
    """[0, 1, 2, 5] -> '0-2,5', with the throttle '%K'."""
    parts: list[list[int]] = []
    for task in sorted(set(tasks)):
        if parts and parts[-1][-1] == task - 1:
            parts[-1] = [parts[-1][0], task]
        else:
            parts.append([task])
    return ",".join("-".join(map(str, part)) for part in parts) + ("" if at_once is None else f"%{at_once}")


def _as_array(launch: LaunchConfig, tasks: Sequence[int], at_once: int | None) -> LaunchConfig:
    return launch.model_copy(update={"array": array_of(tasks, at_once)})


def _free_name(proposed: str, root: Path) -> str:
    names = (f"{proposed[: _MAX_NAME - 12]}-sweep{'' if n == 1 else f'-{n}'}" for n in itertools.count(1))
    return next(name for name in names if not (root / name).exists())


def _check_options(name: str, launch: LaunchConfig, at_once: int | None) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name {shown(name)}: a sweep's name has up to {_MAX_NAME} letters, digits, '_', '-' and '.', and begins "
            "with a letter or a digit"
        )
    if at_once is not None and at_once < 1:
        raise ConfigError(f"--at-once {at_once}: must be at least 1")
    if launch.array is not None:
        raise ConfigError("--array: a sweep is an array of its own; leave it out, and throttle it with --at-once")
    if not launch.supervise and launch.launcher in ARRAYS:
        raise ConfigError("--no-supervise: the tasks of a sweep's array are supervised; leave it out")
    if not is_noted(launch):
        raise ConfigError(
            "a sweep that runs from here needs the supervisor, which notes how each point ends; leave out "
            "--no-supervise, --starter torchrun and --launcher mpi"
        )


def _config(name: str, source: str, overrides: Sequence[str], point: Point, base: RunConfig) -> RunConfig:
    """With a name and places of the point's own, unless the sweep itself sets them."""
    places: dict[str, object] = {"name": name, "output_dir": base.output_dir.with_name(name)}
    for key, value in (
        ("checkpoint.dir", base.checkpoint.dir),
        ("observe.tensorboard_dir", base.observe.tensorboard_dir),
    ):
        if value is not None:
            places[key] = value / name
    own = [f"{key}={json.dumps(str(value))}" for key, value in places.items() if key not in point.settings]
    return load_config(source, [*overrides, *point.overrides, *own])


def _refuse_equal(points: Sequence[Point], configs: Sequence[RunConfig]) -> None:
    """Points that come to the same run, as when a later setting replaces a key, or that write to one place."""
    runs: dict[str, Point] = {}
    places: dict[Path, Point] = {}
    for point, config in zip(points, configs, strict=True):
        other = runs.setdefault(config.model_dump_json(exclude=_OWN), point)
        if other is not point:
            raise ConfigError(
                f"points {other.task} ({other}) and {point.task} ({point}) are the same run; take one of them out, or "
                "look for a setting that another one replaces"
            )
        for place in {config.output_dir, config.checkpoint.dir, config.observe.tensorboard_dir} - {None}:
            assert place is not None
            other = places.setdefault(place.absolute(), point)
            if other is not point:
                raise ConfigError(
                    f"points {other.task} and {point.task} would both write to {place}; leave output_dir out of the "
                    "sweep: each point has its own by itself"
                )


def _result(point: PointRecord, job: Job) -> Result:
    found = read_results(None if job.files is None else job.files.description.run)
    why = job.why or found.pop("why", "")
    num_steps = None if job.files is None else job.files.num_steps
    settings = dict(point.settings)
    return Result(point.task, point.job, settings, job.state.value, **(found | {"why": why, "num_steps": num_steps}))
