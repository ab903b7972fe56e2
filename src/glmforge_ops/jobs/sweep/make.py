"""A sweep made of checked points: a job for each, and the script of an array of all of them.

Nothing is written before every point is checked. The sweep's directory is made first: of two that begin at once with
one name, one is refused. Its record is written last: a sweep that was interrupted before has none, and is told as such.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glmforge.config.launch import LaunchConfig
from glmforge.config.load import load_config
from glmforge.errors import ConfigError, LaunchError
from glmforge.files import shown
from glmforge.observe.run import write_text
from glmforge_ops.jobs.job import JobDescription, JobDirectory, make_directory, removed_on_error, utc_now
from glmforge_ops.jobs.schedulers.base import Scheduler
from glmforge_ops.jobs.schedulers.commands import ask
from glmforge_ops.jobs.script.render import Script, render
from glmforge_ops.jobs.submit.new_job import NewJob, run_job
from glmforge_ops.jobs.submit.preflight import check_fit
from glmforge_ops.jobs.sweep.points import Point
from glmforge_ops.jobs.sweep.record import PointRecord, SweepDirectory, SweepRecord
from glmforge_ops.jobs.sweep.runs import PointRun, check_points

ARRAYS = ("slurm",)
"""Launchers whose scheduler runs a sweep as one array; of the others, points are started from here."""

_MAX_NAME = 56
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{_MAX_NAME - 1}}}")


class ArrayScript(Script):
    """The script of a whole sweep."""

    @property
    def template(self) -> str:
        return f"{self.launch.launcher}_sweep.sh.jinja"


@dataclass(frozen=True)
class NewSweep:
    """A sweep that is not written yet; `script` is that of the array, if it is one."""

    directory: SweepDirectory
    record: SweepRecord
    jobs: Sequence[NewJob]
    script: str | None

    def check(self, scheduler_of: Callable[[str], Scheduler]) -> None:
        """Raises `LaunchError` for what the scheduler would refuse."""
        launch = self.jobs[0].description.launch
        if self.script is not None:
            tasks = [point.task for point in self.record.points]
            check_array_size(tasks[-1])
            launch = array_launch(launch, tasks, self.record.at_once)
        scheduler_of(launch.launcher).check(launch)

    def check_fit(self, gpu: str | None = None) -> str:
        """What the plan was compared with, in words. Raises `LaunchError`, with the point that by plan cannot fit."""
        told = {}
        for job, point in zip(self.jobs, self.record.points, strict=True):
            assert job.config is not None, "points are training runs"
            try:
                told[check_fit(job.config, job.description.launch, gpu)] = True
            except LaunchError as error:
                raise LaunchError(f"point {point.task} ({point}): {error}") from None
        return "; ".join(told)

    def write(self) -> None:
        """Raises `LaunchError` if a name is taken; then nothing of the sweep stays."""
        root = self.directory.root
        with removed_on_error() as made:
            make_directory(root, f"the name is taken; give another --name, or 'glmforge sweep resubmit {root.name}'")
            made.append(root)
            for job in self.jobs:
                job.write()
                made.append(job.directory.root)
            if self.script is not None:
                write_text(self.directory.own.script, self.script)
            self.directory.write(self.record)


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
        show: is told how many points are checked.

    Raises `ConfigError`, which names the point, and `LaunchError`.
    """
    name = name or _free_name(source, overrides, root)
    _check_options(name, launch, at_once)
    runs = check_points(name, source, overrides, points, show)
    jobs = [_job(run, name, launch, root, template) for run in runs]
    directory = SweepDirectory(root / name)
    record = SweepRecord(
        name=name,
        created=utc_now(),
        config=str(source),
        overrides=list(overrides),
        launcher=launch.launcher,
        at_once=at_once,
        points=[PointRecord(task=run.point.task, job=run.name, settings=dict(run.point.settings)) for run in runs],
    )
    script = None
    if launch.launcher in ARRAYS:
        script = array_script(directory, jobs[0].description, record, range(len(points)))
    return NewSweep(directory, record, jobs, script)


def array_script(directory: SweepDirectory, point: JobDescription, record: SweepRecord, tasks: Sequence[int]) -> str:
    """The script that runs these tasks; `point` is any of them."""
    launch = array_launch(point.launch, tasks, record.at_once)
    description = point.model_copy(update={"name": record.name, "launch": launch})
    return render(ArrayScript.of(description, directory.root))


def array_launch(launch: LaunchConfig, tasks: Sequence[int], at_once: int | None) -> LaunchConfig:
    """The points' options, as those of an array."""
    return launch.model_copy(update={"array": array_of(tasks, at_once)})


def array_of(tasks: Sequence[int], at_once: int | None) -> str:
    """[0, 1, 2, 5] -> '0-2,5', with the throttle '%K'."""
    parts: list[list[int]] = []
    for task in sorted(set(tasks)):
        if parts and parts[-1][-1] == task - 1:
            parts[-1] = [parts[-1][0], task]
        else:
            parts.append([task])
    return ",".join("-".join(map(str, part)) for part in parts) + ("" if at_once is None else f"%{at_once}")


def check_array_size(last: int) -> None:
    """Raises `LaunchError` if Slurm's arrays end before the task `last`."""
    answer = ask("scontrol", "show", "config")
    for line in answer.stdout.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize" and value.strip().isdecimal() and last >= int(value):
            raise LaunchError(
                f"the sweep has {last + 1:,} points, and this Slurm's arrays have at most {int(value):,} tasks "
                "(MaxArraySize); split it into several sweeps"
            )


def _free_name(source: str, overrides: Sequence[str], root: Path) -> str:
    proposed = f"{load_config(source, overrides).name[: _MAX_NAME - 12]}-sweep"
    names = (proposed if number == 1 else f"{proposed}-{number}" for number in itertools.count(1))
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


def _job(run: PointRun, sweep: str, launch: LaunchConfig, root: Path, template: Path | None) -> NewJob:
    try:
        job = run_job(JobDirectory(root / run.name), run.config, launch, template)
    except ConfigError as error:
        raise ConfigError(f"point {run.point.task} ({run.point}): {error}") from None
    return replace(job, description=job.description.model_copy(update={"part_of": sweep, "task": run.point.task}))
