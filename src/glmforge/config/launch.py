"""How a job is launched, and what its supervisor may do: the options of `glmforge launch`, for all launchers.

Options of the command line and a file of them (`glmforge launch --options site.yaml`) are the same fields. The job
keeps all of them in its `job.yaml`, so that it can be submitted again as it was.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from glmforge.config.cluster import Interface, Port, Word
from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse
from glmforge.config.secrets import HIDDEN
from glmforge.files import shown

Launcher = Literal["local", "ssh", "slurm", "pbs", "mpi"]
"""Where a job runs: on this machine, on hosts through ssh, under Slurm or PBS, or by mpirun over hosts."""

Starter = Literal["local", "ssh", "srun", "mpirun"]
"""What starts the ranks of an attempt on the nodes that the job has."""

STARTERS: dict[str, tuple[Starter, ...]] = {
    "local": ("local",),
    "ssh": ("ssh",),
    "slurm": ("srun",),
    "pbs": ("ssh", "srun"),
    "mpi": ("mpirun",),
}
"""Starters of each launcher; the first is the default."""

_GIVEN_UP = ("grow_after_s", "refused_starts", "companion_partition", "look_every_s")
"""Settings of the supervisor in files of earlier versions: read, and without effect."""


def _written(pattern: str, example: str) -> AfterValidator:
    """Text of a form; who gets it wrong is shown an example rather than a regular expression."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value, re.ASCII) is None:
            context = {"value": shown(value), "example": example}
            raise PydanticCustomError("written", "{value} is invalid; write it like {example}", context)
        return value

    return AfterValidator(check)


def _limited(value: str) -> str:
    """Slurm takes no time for no limit."""
    if not value.strip("0:-"):
        context = {"value": shown(value)}
        raise PydanticCustomError("limited", "{value} means unlimited; leave it out for the partition's limit", context)
    return value


JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Of a job, a sweep or a chain: to be matched as a whole."""
JobName = Annotated[str, StringConstraints(pattern=f"^{JOB_NAME.pattern}$")]
NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$")]
Time = Annotated[
    str,
    _written(r"\d{1,4}|\d{1,4}(:[0-5]\d){1,2}|\d{1,3}-\d{1,2}(:[0-5]\d){0,2}", "24:00:00 or 2-00:00:00"),
    AfterValidator(_limited),
]
"""As Slurm writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
Memory = Annotated[str, _written(r"\d{1,9}[KMGT]?", "64G")]
Signal = Annotated[str, _written(r"(SIG)?[A-Z][A-Z0-9]{1,9}(@\d{1,5})?", "USR1@120")]
Array = Annotated[
    str, _written(r"{n}(-{n}(:{n})?)?(,{n}(-{n}(:{n})?)?)*(%{n})?".replace("{n}", r"\d{1,9}"), "0-7 or 0-99%8")
]
Dependency = Annotated[
    str, _written(r"[a-z]+(:[A-Za-z0-9_.+-]+)*([,?][a-z]+(:[A-Za-z0-9_.+-]+)*)*", "afterok:1234 or afterany:12:13")
]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Value = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]*$", max_length=32_768)]
SbatchArgument = Annotated[str, _written(r"--[a-z][a-z-]*(=[^\x00-\x1f\x7f]*)?", "--mail-type=END")]


class SupervisorConfig(Strict):
    """What the supervisor may do when an attempt ends."""

    min_nodes: PositiveInt | None = Field(
        default=None, description="fewest nodes to start and continue with; None: 'nodes'"
    )
    max_nodes: PositiveInt | None = Field(default=None, description="most nodes to use, if available; None: 'nodes'")
    spare_nodes: NonNegativeInt = Field(
        default=0, description="extra nodes, used when one fails; under Slurm allocated only if available"
    )
    max_restarts: NonNegativeInt = Field(default=5, description="consecutive failed attempts without a training step")
    max_restarts_in_all: NonNegativeInt = Field(default=1000, description="limit on all restarts, with progress or not")
    back_off_s: NonNegativeFloat = Field(default=5.0, description="after an attempt without a step; doubles each time")
    max_back_off_s: PositiveFloat = 300.0
    same_error: PositiveInt = Field(
        default=2,
        description="attempts with the same error at the same step after which the code is at fault and the job ends",
    )
    node_failures: PositiveInt = Field(default=3, description="failures of one node within a day before it is excluded")
    bad_node: Literal["exclude", "drain", "ignore"] = Field(
        default="exclude", description="drain: also in Slurm, for all users"
    )
    node_back_after_s: PositiveFloat | None = Field(
        default=3600.0, description="an excluded node is checked again after this; None: only 'glmforge jobs allow'"
    )
    grace_s: PositiveFloat = Field(
        default=60.0, description="grace period for the other ranks to exit once one has exited"
    )
    silent_after_s: PositiveFloat | None = Field(
        default=None,
        description="seconds without output, step or reported slow work (trainer.alive) of any rank that count as a "
        "hang; None: only the run's own watchdog",
    )
    check: bool = Field(default=True, description="check nodes that failed, and nodes that come back")

    @model_validator(mode="before")
    @classmethod
    def _without_given_up(cls, values: Any) -> Any:
        return {name: values[name] for name in values if name not in _GIVEN_UP} if isinstance(values, dict) else values


class LaunchConfig(Strict):
    """How a job is launched. None leaves the choice to the scheduler, or to what is found."""

    launcher: Launcher = "local"
    starter: Starter | None = Field(default=None, description="None: the launcher's default; pbs also has srun")

    nodes: PositiveInt = 1
    ranks_per_node: PositiveInt | None = Field(default=None, description="None: gpus_per_node, or 1 without GPUs")
    gpus_per_node: NonNegativeInt = Field(default=0, le=64)
    cpus_per_task: PositiveInt | None = Field(default=None, description="of each rank")
    mem: Memory | None = Field(default=None, description="of each node: 64G")
    time: Time | None = Field(default=None, description="limit: 24:00:00 or 2-00:00:00")
    partition: Word | None = Field(default=None, description="the queue, under PBS")
    qos: Word | None = None
    account: Word | None = None
    exclusive: bool = Field(default=False, description="whole nodes")
    constraint: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.&|*()\[\],-]{1,200}$")] | None = None
    nodelist: list[NodeName] = Field(default=[], description="nodes that the job must get")
    exclude: list[NodeName] = Field(default=[], description="nodes to exclude")
    sbatch_args: list[SbatchArgument] = Field(default=[], description="further sbatch options, passed as given")
    array: Array | None = None
    dependency: Dependency | None = None
    signal: Signal | None = Field(default="USR1@120", description="warning before the time limit and preemption")
    requeue: bool = True
    container: Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f'\"]{1,500}$")] | None = Field(
        default=None, description="image that every rank runs in: by srun's --container-image, or 'apptainer exec'"
    )
    env: dict[VariableName, Value] = Field(
        default={}, description="environment of every rank; *** takes the value from your environment at submission"
    )

    hosts: list[str] = Field(default=[], description="of the launchers ssh and mpi: names or ranges")
    hostfile: YamlPath | None = Field(default=None, description="of the launchers ssh and mpi")
    cluster: YamlPath | None = Field(default=None, description="cluster.yaml: hosts, ssh, interfaces, checks")
    interface: Interface | None = Field(default=None, description="between nodes; None: that of the route to them")
    port: Port | None = Field(
        default=None,
        description="rendezvous port; None: a free one on the first node, for mpirun 29500",
    )

    supervisor: SupervisorConfig = SupervisorConfig()

    @property
    def supervise(self) -> bool:
        """Whether a supervisor restarts the ranks and replaces nodes; mpirun starts its ranks without one."""
        return self.launcher != "mpi"

    @property
    def ranks(self) -> int:
        """Of one node."""
        return self.ranks_per_node or self.gpus_per_node or 1

    @property
    def plain_env(self) -> dict[str, str]:
        """Variables whose values are kept in the job's files."""
        return {name: value for name, value in self.env.items() if value != HIDDEN}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Variables whose values are not."""
        return tuple(name for name, value in self.env.items() if value == HIDDEN)

    @property
    def chosen_starter(self) -> Starter:
        return self.starter or STARTERS[self.launcher][0]

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "supervise" not in values:
            return values
        if values["supervise"] is False and values.get("launcher") != "mpi":
            refuse("supervise", "all launchers but mpi have a supervisor; leave it out")
        return {name: value for name, value in values.items() if name != "supervise"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.chosen_starter not in STARTERS[self.launcher]:
            known = ", ".join(STARTERS[self.launcher])
            refuse(
                "starter",
                f"the launcher {self.launcher} does not support starter '{self.starter}'; choose one of {known}",
            )
        if self.launcher == "local" and self.nodes != 1:
            refuse("nodes", f"the launcher local runs on one node, not {self.nodes}; choose ssh, slurm, pbs or mpi")
        if self.launcher in ("slurm", "pbs") and (self.hosts or self.hostfile):
            refuse("hosts", f"the launcher {self.launcher} uses the nodes of the allocation; remove this key")
        if len([name for name in ("hosts", "hostfile") if getattr(self, name)]) > 1:
            refuse("hostfile", "hosts also names the machines; keep one of the two")
        supervisor = self.supervisor
        if supervisor.min_nodes is not None and supervisor.min_nodes > self.nodes:
            refuse("supervisor.min_nodes", f"{supervisor.min_nodes} is more than nodes ({self.nodes})")
        if supervisor.max_nodes is not None and supervisor.max_nodes < self.nodes:
            refuse("supervisor.max_nodes", f"{supervisor.max_nodes} is less than nodes ({self.nodes})")
        for name in self.secrets:
            if self.launcher == "pbs":
                refuse(
                    f"env.{name}",
                    "PBS shows a job's environment to all users (qstat -f); store the value in a file that only you "
                    "can read",
                )
        return self
