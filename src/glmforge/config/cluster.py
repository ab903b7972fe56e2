"""`cluster.yaml`: the machines of a cluster, how they are reached, and what is expected of them.

    name: h200
    nodes: [node[001-128]]        # or hostfile: hosts.txt, or slurm: {partition: gpu}
    gpus_per_node: 8
    local_path: /local/nvme
    shared_path: /shared/glmforge

`glmforge cluster init` writes one from what it finds. Every command of `glmforge cluster` reads it.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict, refuse
from glmforge.files import shown

Network = Literal["infiniband", "roce", "tcp"]
Port = Annotated[int, Field(ge=1, le=65_535)]
Interface = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,31}$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$")]


def _check_node_path(path: Path) -> Path:
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or not str(path).isprintable():
        message = "is not absolute; every node must find it under the same path"
        if path.is_absolute():
            message = "must be a directory below /, without '..' and characters that cannot be printed"
        raise PydanticCustomError("node_path", "{message}", {"message": f"'{shown(path)}' {message}"})
    return path


NodePath = Annotated[YamlPath, AfterValidator(_check_node_path)]
"""The same directory on every node; scripts and configurations can hold it."""


class SlurmConfig(Strict):
    """Machines as Slurm knows them."""

    partition: Word | None = Field(default=None, description="None: the default one")


class SshConfig(Strict):
    """How machines are reached. Host keys are always checked; see `glmforge cluster setup`."""

    command: str = Field(default="ssh", description='with options: "ssh -F cluster.conf"')
    user: Word | None = Field(default=None, description="None: as ssh's configuration says")
    port: Port | None = Field(default=None, description="None: as ssh's configuration says")
    identity: YamlPath | None = Field(default=None, description="private key; None: as ssh's configuration says")
    known_hosts: YamlPath | None = Field(default=None, description="None: ssh's own files")
    connect_timeout_s: PositiveInt = 20
    at_once: PositiveInt = Field(default=64, le=1024, description="hosts contacted at the same time")


class MonitoringConfig(Strict):
    """Services that should answer on every node, and one that collects from them."""

    node_exporter_port: Port | None = Field(default=None, description="None: not checked")
    dcgm_exporter_port: Port | None = Field(default=None, description="None: not checked")
    prometheus: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+(/\S*)?$")] | None = Field(
        default=None, description="its address, as in http://head:9090"
    )


class ClusterConfig(Strict):
    """A cluster. Exactly one of `nodes`, `hostfile` and `slurm` says which machines."""

    name: Word = "cluster"
    nodes: list[str] | None = Field(default=None, description="names or ranges: [login, 'node[001-128]']")
    hostfile: YamlPath | None = Field(default=None, description="one host per line, with slots=N")
    slurm: SlurmConfig | None = Field(default=None, description="the nodes of a Slurm partition")
    gpus_per_node: NonNegativeInt = Field(default=8, le=64)
    network: Network | None = Field(default=None, description="between nodes; None: detected on each node")
    interface: Interface | None = Field(default=None, description="for TCP, such as eth0; None: from the route")
    infiniband: list[Interface] = Field(default=[], description="devices such as mlx5_0; empty: all detected ones")
    master_addr: str | None = Field(default=None, description="rendezvous host; None: the first node")
    master_port: Port = 29_500
    local_path: NodePath | None = Field(default=None, description="fast local disk of each node")
    shared_path: NodePath | None = Field(default=None, description="storage that all nodes share")
    data_paths: list[NodePath] = Field(default=[], description="token shards and weights that every node reads")
    checkpoint_path: NodePath | None = Field(default=None, description="None: shared_path")
    planned_checkpoint_gb: PositiveFloat | None = Field(
        default=None, description="space that the run's checkpoints need; see 'glmforge plan'"
    )
    python: str = Field(
        default_factory=lambda: sys.executable,
        description="on the nodes, with glmforge installed; default: the interpreter of this command, at the same path",
    )
    ssh: SshConfig = SshConfig()
    monitoring: MonitoringConfig = MonitoringConfig()
    thresholds: dict[str, float] = Field(
        default={}, description="limits of checks; 'glmforge cluster check --list' names them"
    )
    expected: dict[str, str] = Field(default={}, description="versions required on all nodes, such as torch: 2.11.0")

    @model_validator(mode="after")
    def _check(self) -> Self:
        named = [name for name in ("nodes", "hostfile", "slurm") if getattr(self, name) is not None]
        if len(named) > 1:
            refuse(named[1], f"{named[0]} also names the machines; keep one of the two")
        return self
