"""Where the tasks of a step run: processes of this machine, a Slurm cluster, a Ray cluster.

What tasks write does not depend on it.
"""

import os

from pydantic import Field

from glmforge.config.explain import suggest
from glmforge.config.model import Strict
from glmforge.errors import DataError
from glmforge_corpus.pipeline.execution import Executor
from glmforge_corpus.pipeline.local import LocalExecutor


class LocalSettings(Strict):
    """Processes of this machine."""

    workers: int = Field(default=0, ge=0, description="tasks at a time; 0: as many as this process may use cores")

    def make(self) -> Executor:
        return LocalExecutor(self.workers or len(os.sched_getaffinity(0)))


class SlurmSettings(Strict):
    """A job array per step, submitted from a machine with sbatch; the output directory is on shared storage."""

    partition: str
    time: str = Field(default="24:00:00", description="limit of one array job, as sbatch takes it")
    workers: int = Field(default=-1, ge=-1, description="array jobs at a time; -1: no limit")
    tasks_per_job: int = Field(default=1, ge=1, description="tasks that one array job does one after the other")
    cpus_per_task: int = Field(default=1, ge=1)
    mem_per_cpu_gb: int = Field(default=4, ge=1)
    qos: str | None = None
    env_command: str = Field(default="", description="shell line before each job; empty: this Python's environment")
    sbatch_args: dict[str, str] = Field(default_factory=dict, description="further options of sbatch, without --")

    def make(self) -> Executor:
        from glmforge_corpus.pipeline.clusters import SlurmExecutor

        return SlurmExecutor(self)


class RaySettings(Strict):
    """Tasks on a Ray cluster that sees the output directory."""

    address: str | None = Field(default=None, description="of the cluster, or auto; null: one of this machine")
    workers: int = Field(default=-1, ge=-1, description="tasks at a time; -1: as many as the cluster has room for")
    cpus_per_task: int = Field(default=1, ge=1)
    mem_per_cpu_gb: float = Field(default=2.0, gt=0, strict=False)

    def make(self) -> Executor:
        from glmforge_corpus.pipeline.clusters import RayExecutor

        return RayExecutor(self)


class Executors(Strict):
    """Settings of the executors that a pipeline may be run with; `--executor` chooses."""

    local: LocalSettings = Field(default_factory=LocalSettings)
    slurm: SlurmSettings | None = None
    ray: RaySettings = Field(default_factory=RaySettings)

    def make(self, name: str) -> Executor:
        """The executor of that name. Raises `DataError` for one that is unknown or has no settings."""
        if name not in type(self).model_fields:
            raise DataError(f"unknown executor '{name}': {suggest(name, type(self).model_fields)}")
        settings: LocalSettings | SlurmSettings | RaySettings | None = getattr(self, name)
        if settings is None:
            raise DataError(f"executor '{name}': the pipeline file says nothing of it: add 'executors.{name}'")
        return settings.make()
