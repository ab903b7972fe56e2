"""What the ranks of an attempt are started with: their nodes, where they meet, their variables."""

import zlib

from glmforge.observe.job import ATTEMPT_VARIABLE, DIRECTORY_VARIABLE, NAME_VARIABLE
from glmforge.observe.job_records import AttemptDirectory, JobDescription
from glmforge_ops.jobs.starters.base import Ranks, Starter
from glmforge_ops.jobs.starters.meeting import find_meeting_place
from glmforge_ops.jobs.supervisor.allocation.base import Allocation


def where_to_meet(
    job: JobDescription, starter: Starter, allocation: Allocation, nodes: tuple[str, ...], number: int
) -> tuple[str, int]:
    """Address and port for attempt `number`, as its first node says; another port than the last one's, which may still
    be held. Raises `LaunchError` and `HostError`."""
    first = zlib.crc32(f"{job.name} {allocation.submission}".encode()) + 101 * number
    address, port = find_meeting_place(starter, nodes, first, address_of=allocation.address)
    return address, job.launch.port or port


def ranks_of(
    job: JobDescription, directory: AttemptDirectory, nodes: tuple[str, ...], number: int, address: str, port: int
) -> Ranks:
    """The ranks of attempt `number` of a job, which meet at `address`."""
    launch = job.launch
    variables = {
        NAME_VARIABLE: job.name,
        ATTEMPT_VARIABLE: str(number),
        DIRECTORY_VARIABLE: str(directory.job.absolute()),
    }
    return Ranks(
        directory=directory,
        nodes=nodes,
        ranks_per_node=launch.ranks,
        command=tuple(job.command),
        cwd=job.directory,
        address=address,
        port=port,
        environment={**variables, **job.env, **launch.plain_env},
        secrets=launch.secrets,
        interface=launch.interface,
        gpus_per_node=launch.gpus_per_node,
        cpus_per_task=launch.cpus_per_task,
        container=launch.container,
        grace_s=launch.supervisor.grace_s,
    )
