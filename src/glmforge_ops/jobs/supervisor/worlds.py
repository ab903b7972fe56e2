"""On how many nodes a job can run: what its layout and its batches allow."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from glmforge.config.layout import resolve_layout
from glmforge.config.load import load_config
from glmforge.errors import ConfigError, LaunchError
from glmforge.observe.job_records import JobDescription, JobDirectory


def bearable(job: JobDirectory, description: JobDescription) -> Callable[[int], bool]:
    """Whether the job can run on so many nodes. Of another program than ours nobody knows: only on what it asks for,
    and on what its options say.
    """
    ranks, run = description.launch.ranks, job.root / "run.yaml"
    if description.kind != "train" or not run.exists():
        supervisor, wanted = description.launch.supervisor, description.launch.nodes
        least, most = supervisor.min_nodes or wanted, supervisor.max_nodes or wanted
        return lambda nodes: least <= nodes <= most
    return _of_run(run, ranks)


def _of_run(run: Path, ranks: int) -> Callable[[int], bool]:
    try:
        config = load_config(run)
    except ConfigError as error:
        raise LaunchError(str(error)) from None

    @cache
    def bears(nodes: int) -> bool:
        if nodes < config.fault_tolerance.min_nodes:
            return False
        try:
            resolve_layout(config, nodes * ranks)
        except ConfigError:
            return False
        return True

    return bears
