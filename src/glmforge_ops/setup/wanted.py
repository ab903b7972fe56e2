"""What setup is asked for: which machines, which launcher, where; checked before anything is connected to."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from glmforge.config.cluster import ClusterConfig
from glmforge.errors import HostError
from glmforge.files import absolute, kind_of, shown
from glmforge.runtime.hostfile import LOCAL, HostLine, expand_hosts
from glmforge_ops.hosts.machines import ssh_of

Kind = Literal["slurm", "mpi", "manual"]
_MANY = 3


@dataclass(frozen=True)
class Wanted:
    """A checked request; make it with `of`.

    Attributes:
        machines: each with its slots.
        out: absolute; the directory of the cluster's own on this machine.
    """

    kind: Kind
    cluster: ClusterConfig
    machines: tuple[HostLine, ...]
    out: Path

    @classmethod
    def of(cls, kind: Kind, cluster: ClusterConfig, machines: list[HostLine], out: Path, nodes: int | None) -> Self:
        """Raises `HostError`. `nodes`: how many there must be."""
        names = [line.name for line in machines]
        if nodes is not None and nodes != len(names):
            few = ", ".join(names[:_MANY]) + (f", ... {names[-1]}" if len(names) > _MANY else "")
            raise HostError(f"--nodes {nodes}, but there are {len(names)}: {few}; correct --nodes or the hosts")
        ssh_of(cluster)
        slots = cluster.gpus_per_node or 1
        other = next((line for line in machines if line.slots not in (None, slots)), None)
        if other is not None:
            raise HostError(
                f"{other.name} has slots={other.slots}, but --gpus-per-node is {slots}; make them equal, or set up "
                "such nodes as a cluster of their own"
            )
        if cluster.local_path is not None:
            _check_path(cluster.local_path, "--nvme-path")
        out = absolute(out)
        _check_path(out, "--out")
        if '"' in str(out) or "%" in str(out):
            raise HostError(f"--out {shown(out)}: ssh's configuration cannot hold \" and %; choose another path")
        if kind == "mpi" and any(character.isspace() for character in str(out)):
            raise HostError(f"--out {shown(out)}: mpirun splits a path at spaces; choose another path")
        if kind_of(out, error=HostError) not in (None, "directory"):
            raise HostError(f"--out {shown(out)}: is not a directory; choose another path")
        wanted = cls(kind, cluster, tuple(HostLine(name, slots) for name in names), out)
        _check_master(wanted)
        return wanted

    @property
    def names(self) -> list[str]:
        return [line.name for line in self.machines]

    @property
    def slots(self) -> int:
        """Ranks on each machine."""
        return self.cluster.gpus_per_node or 1

    @property
    def master_addr(self) -> str:
        return self.cluster.master_addr or bare(self.names[0])

    @property
    def master_host(self) -> str | None:
        """Which of the machines the ranks meet on; None if the address is not the name of one."""
        return next((name for name in self.names if bare(name) == bare(self.master_addr)), None)

    @property
    def master_node(self) -> str:
        """The machine with that address, as Slurm calls it."""
        return bare(self.master_host or self.names[0])

    @property
    def ssh_directory(self) -> Path:
        return self.out / "ssh"


def bare(name: str) -> str:
    """A host's name without the account."""
    return name.rpartition("@")[2]


def _check_path(path: Path, option: str) -> None:
    """What lines of scripts and configurations can hold; anything else is quoted where it is used."""
    text = str(path)
    if not path.is_absolute():
        raise HostError(f"{option} {shown(path)}: is not absolute; give the path from / on, the same on every node")
    if not text.isprintable():
        raise HostError(f"{option} {shown(path)}: holds a character that cannot be printed; choose another path")
    if ".." in path.parts:
        raise HostError(f"{option} {shown(path)}: goes up by '..'; give the path that it leads to")
    if len(path.parts) < 2:
        raise HostError(f"{option} {shown(path)}: is the root of everything; give a directory")


def _check_master(wanted: Wanted) -> None:
    """An address that is no machine's name must at least be one that this machine knows."""
    expand_hosts([wanted.master_addr], "--master-addr")
    if wanted.master_host is not None or wanted.master_addr in LOCAL:
        return
    try:
        socket.getaddrinfo(wanted.master_addr, None)
    except OSError:
        raise HostError(
            f"--master-addr {shown(wanted.master_addr)}: is not one of the nodes, and this machine cannot resolve it; "
            "give the name or address of the first node"
        ) from None
