"""Where the tasks of a step run: processes of this machine, a Slurm cluster, a Ray cluster.

What tasks write does not depend on it.
"""

import os

from glmforge.config.explain import suggest
from glmforge.errors import DataError
from glmforge_corpus.pipeline.execution import Executor
from glmforge_corpus.pipeline.local import LocalExecutor
from glmforge_corpus.pipeline.settings import ExecutorSettings


def make_executor(name: str, settings: ExecutorSettings) -> Executor:
    """The executor of that name. Raises `DataError` for one that is unknown or has no settings."""
    match name:
        case "local":
            return LocalExecutor(settings.local.workers or len(os.sched_getaffinity(0)))
        case "slurm":
            if settings.slurm is None:
                raise DataError("executor 'slurm': not in the pipeline file; add 'executors.slurm'")
            from glmforge_corpus.pipeline.slurm import SlurmExecutor

            return SlurmExecutor(settings.slurm)
        case "ray":
            from glmforge_corpus.pipeline.ray import RayExecutor

            return RayExecutor(settings.ray)
        case _:
            raise DataError(f"unknown executor '{name}': {suggest(name, type(settings).model_fields)}")
