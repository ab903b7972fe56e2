"""The run of a job, for `glmforge watch` and what else takes a run or a job."""

from collections.abc import Callable
from pathlib import Path


def run_of_job(name: str, jobs_dir: Path | None) -> tuple[Path, Callable[[], bool]] | None:
    """The run's directory, and what asks whether the job goes on; None if there is no job of this name.

    Raises `LaunchError` for a job that trains nothing, and `GlmforgeError` if its description is damaged.
    """
    from glmforge.config.launch import JOB_NAME
    from glmforge.errors import LaunchError
    from glmforge.observe.job_records import JobDirectory
    from glmforge_ops.cli.launch.common import find
    from glmforge_ops.jobs.registry import jobs_root

    directory = JobDirectory(jobs_root(jobs_dir) / name)
    if not JOB_NAME.fullmatch(name) or not directory.description.is_file():
        return None
    run = directory.read().run
    if run is None:
        raise LaunchError(f"{name}: is not a training job; see 'glmforge jobs follow {name}'")
    return Path(run), lambda: not find(jobs_dir, [name])[0].state.is_over
