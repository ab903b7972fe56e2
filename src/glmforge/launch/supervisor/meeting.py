"""What the ranks of an attempt are started with: their nodes, where they meet, their variables."""

import socket
import zlib
from contextlib import closing

from glmforge.launch.job import AttemptDirectory, JobDescription
from glmforge.launch.starters.base import Ranks
from glmforge.launch.supervisor.allocation import Allocation
from glmforge.observe.job import ATTEMPT_VARIABLE, DIRECTORY_VARIABLE, NAME_VARIABLE

_PORTS = range(20_000, 30_000)
"""Below those that the kernel hands out by itself."""


def ranks_of(
    job: JobDescription, allocation: Allocation, directory: AttemptDirectory, nodes: tuple[str, ...], number: int
) -> Ranks:
    """The ranks of attempt `number` of a job."""
    launch = job.launch
    address = allocation.address(nodes[0])
    variables = {
        NAME_VARIABLE: job.name,
        ATTEMPT_VARIABLE: str(number),
        DIRECTORY_VARIABLE: str(directory.root.parent.parent.absolute()),
    }
    return Ranks(
        directory=directory,
        nodes=nodes,
        ranks_per_node=launch.ranks,
        command=tuple(job.command),
        cwd=job.directory,
        address=address,
        port=launch.port or choose_port(f"{job.name} {allocation.submission}", number, address),
        environment={**variables, **job.env, **launch.env},
        interface=launch.interface,
        gpus_per_node=launch.gpus_per_node,
        cpus_per_task=launch.cpus_per_task,
        container=launch.container,
        grace_s=launch.supervisor.grace_s,
    )


def choose_port(job: str, number: int, address: str) -> int:
    """Another one for each job and attempt: the last one's may still be held. On this machine, a free one."""
    first = zlib.crc32(job.encode()) + 101 * number
    for offset in range(100):
        port = _PORTS[(first + offset) % len(_PORTS)]
        if address not in ("127.0.0.1", "localhost") or _is_free(port):
            return port
    return _PORTS[first % len(_PORTS)]


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
