"""Settings of the executors that a pipeline may be run with."""

from pydantic import Field

from glmforge.config.model import Strict


class LocalSettings(Strict):
    """Processes of this machine."""

    workers: int = Field(default=0, ge=0, description="tasks run in parallel; 0: one per usable core")


class SlurmSettings(Strict):
    """A job array per step, submitted from a machine with sbatch; the output directory is on shared storage."""

    partition: str
    time: str = Field(default="24:00:00", description="time limit of an array job, in sbatch syntax")
    workers: int = Field(default=-1, ge=-1, description="array jobs run in parallel; -1: no limit")
    tasks_per_job: int = Field(default=1, ge=1, description="tasks per array element, run in sequence")
    cpus_per_task: int = Field(default=1, ge=1)
    mem_per_cpu_gb: int = Field(default=4, ge=1)
    qos: str | None = None
    env_command: str = Field(default="", description="shell line run before each job; empty: this Python's environment")
    sbatch_args: dict[str, str] = Field(default_factory=dict, description="further sbatch options, without --")


class RaySettings(Strict):
    """Tasks on a Ray cluster that sees the output directory."""

    address: str | None = Field(
        default=None, description="address of the cluster, or auto; null: start one on this machine"
    )
    workers: int = Field(default=-1, ge=-1, description="tasks run in parallel; -1: as many as fit on the cluster")
    cpus_per_task: int = Field(default=1, ge=1)
    mem_per_cpu_gb: float = Field(default=2.0, gt=0, strict=False)


class ExecutorSettings(Strict):
    """`executors` of a pipeline file; `--executor` chooses one of them."""

    local: LocalSettings = Field(default_factory=LocalSettings)
    slurm: SlurmSettings | None = None
    ray: RaySettings = Field(default_factory=RaySettings)
