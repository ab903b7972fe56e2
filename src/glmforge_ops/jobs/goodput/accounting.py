"""When Slurm gave a job nodes, and for how long it waited for them: from its accounting.

One job has as many rows as it was started: each requeue adds one (`sacct --duplicates`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from glmforge.errors import LaunchError
from glmforge_ops.jobs.goodput.timeline import Allocation
from glmforge_ops.jobs.schedulers.slurm_jobs import ask_accounting, time_of

_FIELDS = "JobID,Submit,Eligible,Start,End,NNodes"


@dataclass(frozen=True)
class Accounting:
    """What Slurm has noted of a job's submissions.

    `waited_s`: from when it might have started (dependencies fulfilled, begin time come) until it did; after a requeue
    from that, for which Slurm makes a later begin time itself.
    """

    allocations: list[Allocation]
    waited_s: float


def slurm_accounting(ids: Sequence[str], now: datetime) -> Accounting | None:
    """None where there is no accounting, or where it does not know the job (yet)."""
    if not ids:
        return None
    try:
        answer = ask_accounting(ids, _FIELDS)
    except LaunchError:
        return None
    return None if answer.status else parse(answer.stdout, ids, now)


def parse(text: str, ids: Sequence[str], now: datetime) -> Accounting | None:
    """What sacct has printed; what has not ended lasts until `now`. None if no start is among it."""
    allocations, waited, wanted, started = [], 0.0, set(ids), set[str]()
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != len(_FIELDS.split(",")) or fields[0] not in wanted:
            continue
        submitted, eligible, start, end = map(time_of, fields[1:5])
        since = submitted if fields[0] in started else eligible
        if since is not None:
            waited += max(0.0, ((start or now) - since).total_seconds())
        started.add(fields[0])
        if start is not None and fields[5].isdecimal():
            allocations.append(Allocation(start, max(start, end or now), int(fields[5]), fields[0]))
    return Accounting(allocations, waited) if allocations else None
