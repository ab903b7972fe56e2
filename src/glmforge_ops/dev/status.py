"""What a development cluster looks like now, as a table or for a machine."""

import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glmforge_ops.dev.cluster import DevCluster
from glmforge_ops.dev.slurm import expand, node_facts, run_slurm
from glmforge_ops.dev.state import HostState


@dataclass(frozen=True)
class HostStatus:
    """One host.

    Attributes:
        slurm: what Slurm takes the node for, in its own words; empty for the head and without Slurm.
        jobs: that run there.
        disk_used_bytes: by what lies on its local disk.
        ended: daemons that have ended, with their status: heal the node to have them again.
    """

    name: str
    state: HostState
    address: str
    slurm: str
    jobs: tuple[str, ...]
    disk_used_bytes: int
    rate: str | None
    clock_offset_s: float
    ended: tuple[str, ...]


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster: its hosts, and jobs that wait. `disk_free_bytes` is of the disk that all local disks lie on."""

    directory: str
    mode: str
    slurm_conf: str | None
    ssh_config: str | None
    disk_free_bytes: int
    hosts: tuple[HostStatus, ...]
    waiting: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def status_of(cluster: DevCluster) -> ClusterStatus:
    """Look at every host. Raises `HostError` if the cluster is no more."""
    places, state = cluster.places, cluster.refresh()
    facts = node_facts(places, state) if state.options.slurm else {}
    running, waiting = _jobs(cluster) if state.options.slurm else ({}, ())
    hosts = tuple(
        HostStatus(
            name=name,
            state=record.state,
            address=record.address,
            slurm=facts.get(name, {}).get("State", "").lower(),
            jobs=tuple(running.get(name, ())),
            disk_used_bytes=_bytes_below(places.disk(name)),
            rate=record.rate,
            clock_offset_s=record.clock_offset_s,
            ended=tuple(cluster.ended_daemons(name)),
        )
        for name, record in state.hosts.items()
    )
    return ClusterStatus(
        directory=str(places.directory),
        mode=state.mode,
        slurm_conf=str(places.slurm_conf) if state.options.slurm else None,
        ssh_config=str(places.ssh_config) if state.ssh else None,
        disk_free_bytes=shutil.disk_usage(places.directory).free,
        hosts=hosts,
        waiting=waiting,
    )


def _jobs(cluster: DevCluster) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Node -> jobs on it; and the jobs that wait, with what for."""
    places, state = cluster.places, cluster.state
    asks = ("squeue", "--noheader", "--states=running,completing,pending", "--format=%A|%N|%r")
    running: dict[str, list[str]] = {}
    waiting = []
    for line in run_slurm(places, state, *asks).splitlines():
        job, nodes, reason = line.split("|", 2)
        for node in expand(nodes):
            running.setdefault(node, []).append(job)
        if not nodes:
            waiting.append(f"{job} ({reason})")
    return running, tuple(waiting)


def _bytes_below(directory: Path) -> int:
    return sum(path.lstat().st_size for path in _files(directory))


def _files(directory: Path) -> Iterable[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
