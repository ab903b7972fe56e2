"""All checks: one list, in the order in which a person would look. Diagnosis reads it, too."""

import difflib
from collections.abc import Sequence

from glmforge.errors import ConfigError
from glmforge.files import shown
from glmforge_ops.health.checks import (
    checkpoints,
    clock,
    connections,
    data,
    disk,
    disk_speed,
    environment,
    gpu,
    hostfile,
    infiniband,
    job,
    latency,
    limits,
    memory,
    monitoring,
    nccl,
    network,
    numa,
    nvlink,
    nvme,
    pcie,
    processes,
    roce,
    shared,
    shared_together,
    slurm,
    ssh,
    versions,
    xid,
)
from glmforge_ops.health.checks.check import Check, Level
from glmforge_ops.health.checks.examine import REACH

CHECKS: tuple[Check, ...] = (
    *hostfile.CHECKS,
    *ssh.CHECKS,
    *versions.CHECKS,
    *gpu.CHECKS,
    *xid.CHECKS,
    *nvlink.CHECKS,
    *pcie.CHECKS,
    *infiniband.CHECKS,
    *roce.CHECKS,
    *latency.CHECKS,
    *numa.CHECKS,
    *clock.CHECKS,
    *processes.CHECKS,
    *memory.CHECKS,
    *limits.CHECKS,
    *disk.CHECKS,
    *nvme.CHECKS,
    *disk_speed.CHECKS,
    *shared.CHECKS,
    *shared_together.CHECKS,
    *checkpoints.CHECKS,
    *data.CHECKS,
    *network.CHECKS,
    *connections.CHECKS,
    *environment.CHECKS,
    *monitoring.CHECKS,
    *slurm.CHECKS,
    *nccl.CHECKS,
    *job.CHECKS,
)


_ALWAYS = (REACH, REACH.split(".")[0])


def choose_checks(level: Level, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Check]:
    """The checks of a level, or those named, by name or by subject ("disk" for all "disk.*"). Raises `ConfigError`.

    Whether a machine is reached is found out in any case; "reach" alone asks nothing else.
    """
    for name in (*only, *skip):
        if name not in _ALWAYS and not any(_means(name, check) for check in CHECKS):
            known = sorted({check.name for check in CHECKS} | {check.name.split(".")[0] for check in CHECKS})
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else "; 'glmforge cluster check --list' names them"
            raise ConfigError(f"there is no check '{shown(name)}'{hint}")
    wanted = [
        check for check in CHECKS if (any(_means(name, check) for name in only) if only else check.level <= level)
    ]
    return [check for check in wanted if not any(_means(name, check) for name in skip)]


def _means(name: str, check: Check) -> bool:
    return name in (check.name, check.name.split(".")[0])
