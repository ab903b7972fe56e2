"""A sweep: a job for each point, made, submitted, run from here, and cancelled.

    jobs/lr/sweep.json     its points, and how it was asked for; written once, when all points are there
    jobs/lr/script.sh      what a scheduler was given: one array of all points
    jobs/lr/events.jsonl   submissions and cancellations
    jobs/lr-000/ ...       a job for each point

Every point's whole configuration is checked before anything is written. Each is a run of its own: its name is the
sweep's with the point's number (`lr-003`), and so are its directory (beside the one that a run without the sweep has)
and every other place that it writes to.

Under Slurm a sweep is one array, and each submission of a point is a task of it, `12_3`. Submitting again makes an
array of the tasks that have not finished and are not queued or running. If submitting was killed before every job knew
its task, the next one finds the array. With other launchers the points are run from here.
"""

import itertools
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
from glmforge_ops.jobs.control import cancel_all
from glmforge_ops.jobs.new_job import NewJob, run_job
from glmforge_ops.jobs.preflight import check_fit
from glmforge_ops.jobs.registry import SchedulerOf
from glmforge_ops.jobs.schedulers.base import State
from glmforge_ops.jobs.script.render import Script, render
from glmforge_ops.jobs.several import Report, Several, is_live, read_record, write_new
from glmforge_ops.jobs.state import JobState
from glmforge_ops.jobs.submit import id_of_task, note_submission, submit_noted
from glmforge_ops.jobs.sweep.points import Settings, overrides_of, settings_words, value_words
from glmforge_ops.jobs.sweep.results import Result, read_result

_MAX_NAME = 56
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{_MAX_NAME - 1}}}")
_DIGITS = 3


class PointRecord(FileRecord):
    """A point of a sweep."""

    task: NonNegativeInt
    job: JobName
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"point {self.task} ({settings_words(self.settings)})"


class SweepRecord(FileRecord):
    """What a sweep is; never changes."""

    name: JobName
    created: AwareDatetime
    config: str
    launcher: Launcher
    at_once: PositiveInt | None
    """Most points that run at the same time."""
    points: list[PointRecord]

    def differing(self) -> list[str]:
        """Keys of the settings that are not the same in all points, in the order in which they were given."""
        keys = dict.fromkeys(key for point in self.points for key in point.settings)
        words = {key: {value_words(point.settings.get(key)) for point in self.points} for key in keys}
        return [key for key in keys if len(words[key]) > 1]

    def array(self, points: Sequence[PointRecord]) -> str | None:
        """Of these points, as a scheduler takes it; None if it runs no sweeps: then points are run from here."""
        return array_of([point.task for point in points], self.at_once) if self.launcher == "slurm" else None


@dataclass(frozen=True)
class NewSweep:
    """A sweep that is not written yet; `script` is that of the array, if it is one."""

    root: Path
    record: SweepRecord
    jobs: Sequence[NewJob]
    script: str | None

    def check(self, scheduler_of: SchedulerOf) -> None:
        """Raises `LaunchError` for what the scheduler would refuse."""
        launch = self.jobs[0].description.launch
        array = self.record.array(self.record.points)
        scheduler_of(launch.launcher).check(launch.model_copy(update={"array": array}))

    def check_fit(self, gpu: str | None = None) -> str:
        """What the plan was compared with, in words. Raises `LaunchError` with the point that by plan does not fit."""
        words = ""
        for job, point in zip(self.jobs, self.record.points, strict=True):
            assert job.config is not None, "points are training runs"
            try:
                words = check_fit(job.config, job.description.launch, gpu)
            except LaunchError as error:
                raise LaunchError(f"{point}: {error}") from None
        return words

    def write(self) -> None:
        """Raises `LaunchError` if a name is taken; then nothing of the sweep stays."""
        write_new(self.root, "sweep", self.jobs, self.record, self.script)


def make_sweep(
    name: str | None,
    source: str,
    overrides: Sequence[str],
    points: Sequence[Settings],
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
            if there is no scheduler.
        template: of each point's own script.
        show: is given the number of points that are checked.

    Raises `ConfigError`, which names the first point that cannot be, or two that are the same run, and `LaunchError`.
    """
    base = load_config(source, overrides)  # a mistake that all points share is reported once, without a point's number
    name = name or _free_name(base.name, root)
    _check_options(name, points, launch, at_once)
    records = [
        PointRecord(task=task, job=f"{name}-{task:0{_DIGITS}d}", settings=settings)
        for task, settings in enumerate(points)
    ]
    jobs: list[NewJob] = []
    runs: dict[str, PointRecord] = {}
    for point in records:
        try:
            config = load_config(source, [*overrides, *overrides_of(point.settings)])
            job = run_job(JobDirectory(root / point.job), _named(config, point.job), launch, template)
        except ConfigError as error:
            raise ConfigError(f"{point}: {error}") from None
        if (other := runs.setdefault(config.model_dump_json(), point)) is not point:
            raise ConfigError(
                f"{other} and {point} are the same run; take one of them out, or look for a setting that another one "
                "replaces"
            )
        description = job.description.model_copy(update={"part_of": name, "task": point.task})
        jobs.append(replace(job, description=description))
        show(len(jobs))
    record = SweepRecord(
        name=name,
        created=utc_now(),
        config=str(source),
        launcher=launch.launcher,
        at_once=at_once,
        points=records,
    )
    script = None
    if (array := record.array(records)) is not None:
        changes = {"name": name, "launch": launch.model_copy(update={"array": array})}
        description = jobs[0].description.model_copy(update=changes)
        script = render(replace(Script.of(description, root / name), task_digits=_DIGITS))
    return NewSweep(root / name, record, jobs, script)


class Sweep(Several):
    """A sweep that has been written."""

    def __init__(self, root: Path, scheduler_of: SchedulerOf) -> None:
        self.record = read_record(root, "sweep", SweepRecord)
        super().__init__(root, [point.job for point in self.record.points], scheduler_of)

    @property
    def is_queued(self) -> bool:
        """Whether a scheduler runs the points, as one array."""
        return self.record.launcher == "slurm"

    def results(self) -> list[Result]:
        """A row for each point, by number."""
        return [
            read_result(point.task, point.settings, job)
            for point, job in zip(self.record.points, self.jobs(), strict=True)
        ]

    def submit(self, report: Report) -> None:
        """Submit what has not finished and is not queued or running.

        Raises `HeldError` while another process does the same.
        """
        with self.lease():
            self._adopt()
            pairs = zip(self.record.points, self.jobs(), strict=True)
            chosen = [point for point, job in pairs if job.is_to_submit]
            if chosen:
                launch = self.directory(chosen[0].job).read().launch
                array = self.record.array(chosen) or ""
                scheduler = self.scheduler_of(self.record.launcher)
                submit_noted(scheduler, self.own, launch, lambda number: self._note(number, chosen), array=array)
        report(self.root.name, f"{len(chosen):,} points submitted" if chosen else "nothing is left to submit")

    def run(self, report: Report) -> dict[str, JobState]:
        """Run what has not finished from here, as many at once as the sweep says; the state of each at the end."""
        return self.run_here({name: () for name in self.names}, self.record.at_once or 1, report)

    def cancel(self) -> list[str]:
        """Cancel every point that waits or runs; their names. Points that have not begun do not begin."""
        live = [job for job in self.jobs() if is_live(job)]
        ids = dict.fromkeys(job.submission for job in live if job.submission is not None)
        arrays = dict.fromkeys(id_.partition("_")[0] for id_ in ids) if self.is_queued else ids
        cancel_all(live, self.scheduler_of(self.record.launcher), group=self.own, ids=arrays)
        return [job.name for job in live]

    def _adopt(self) -> None:
        """Note the tasks of arrays that the scheduler has and the jobs do not know: submitting them was killed."""
        scheduler = self.scheduler_of(self.record.launcher)
        for array in scheduler.unnoted(self.own):
            ids = {id_of_task(array, point.task): point for point in self.record.points}
            noted = {each.id for point in self.record.points for each in self.directory(point.job).read_submissions()}
            missing = scheduler.look([id_ for id_ in ids if id_ not in noted])
            if found := [ids[id_] for id_, seen in missing.items() if seen.state is not State.UNKNOWN]:
                self._note(array, found)

    def _note(self, array: str, points: Sequence[PointRecord]) -> None:
        self.own.event("submitted", f"{len(points)} points as {array}", submission=array)
        for point in points:
            note_submission(self.directory(point.job), id_of_task(array, point.task), self.record.launcher)


def array_of(tasks: Sequence[int], at_once: int | None) -> str:
    """[0, 1, 2, 5] -> '0-2,5', with the throttle '%K'."""
    pairs = itertools.groupby(enumerate(sorted(tasks)), lambda pair: pair[1] - pair[0])
    runs = [[task for _, task in run] for _, run in pairs]
    words = (str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return ",".join(words) + ("" if at_once is None else f"%{at_once}")


def _free_name(proposed: str, root: Path) -> str:
    names = (f"{proposed[: _MAX_NAME - 12]}-sweep{'' if n == 1 else f'-{n}'}" for n in itertools.count(1))
    return next(name for name in names if not (root / name).exists())


def _check_options(name: str, points: Sequence[Settings], launch: LaunchConfig, at_once: int | None) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name {shown(name)}: a sweep's name has up to {_MAX_NAME} letters, digits, '_', '-' and '.', and begins "
            "with a letter or a digit"
        )
    if own := [key for key in ("name", "output_dir") if any(key in settings for settings in points)]:
        raise ConfigError(f"the sweep sets {own[0]}; leave it out: each point has its own")
    if at_once is not None and at_once < 1:
        raise ConfigError(f"--at-once {at_once}: must be at least 1")
    if launch.array is not None:
        raise ConfigError("--array: a sweep is an array of its own; leave it out, and throttle it with --at-once")
    if not launch.supervise:
        raise ConfigError("the points of a sweep need the supervisor, which --launcher mpi does not have")


def _named(config: RunConfig, name: str) -> RunConfig:
    """With the point's own name, and places of its own."""
    checkpoint, observe = config.checkpoint, config.observe
    if checkpoint.dir is not None:
        checkpoint = checkpoint.model_copy(update={"dir": checkpoint.dir / name})
    if observe.tensorboard_dir is not None:
        observe = observe.model_copy(update={"tensorboard_dir": observe.tensorboard_dir / name})
    output_dir = config.output_dir.with_name(name)
    places = {"name": name, "output_dir": output_dir, "checkpoint": checkpoint, "observe": observe}
    return config.model_copy(update=places)
