"""What a development cluster is to be like."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glmforge.errors import ConfigError
from glmforge.files import shown
from glmforge_ops.dev.places import MAX_NODES, SAFE_PATH

HEAD = "head"
"""The host of the controller, where jobs are submitted; it is not a node."""

Mode = Literal["namespaces", "plain"]
"""`namespaces`: each node is a host of its own. `plain`: daemons of this user on the loopback, named like nodes."""

_LIMITS = {
    "nodes": (1, MAX_NODES),
    "gpus": (0, 64),
    "cpus": (1, 1024),
    "slurmd_timeout_s": (3, 65533),
    "grace_time_s": (0, 65533),
    "first_job": (1, 1_000_000),
}
_RATE = re.compile(r"[1-9][0-9]{0,5}(kbit|mbit|gbit)")


@dataclass(frozen=True, kw_only=True)
class DevOptions:
    """Raises `ConfigError` for values that cannot be used.

    Attributes:
        gpus: per node: device files without a device.
        cpus: that each node reports, whatever this machine has.
        slurm: False: only hosts with ssh servers.
        accounting: slurmdbd with a database, so that sacct works.
        prolog: program that Slurm runs as root on each node before a job.
        slurmd_timeout_s: seconds without a response after which Slurm marks a node down.
        grace_time_s: seconds from the warning of a job in `main` to its end when an urgent job preempts it.
        first_job: Slurm's first job number. Ports derive from it: plain clusters side by side need different ones.
        link_rate: of each node in each direction, as `tc` writes it: "100mbit". None: unlimited.
        bare: nodes that are still to be set up: each with an empty home directory of its own, and no ssh configuration.
        shm_size: of each node's /dev/shm, as mount(8) writes it.
        mode: None: namespaces where that is allowed, else plain.
    """

    nodes: int = 3
    gpus: int = 8
    cpus: int = 8
    slurm: bool = True
    accounting: bool = False
    prolog: Path | None = None
    slurmd_timeout_s: int = 30
    grace_time_s: int = 300
    first_job: int = 1
    link_rate: str | None = None
    bare: bool = False
    shm_size: str = "50%"
    mode: Mode | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} {getattr(self, name)}: must be between {least} and {most}")
        check_rate(self.link_rate)
        if self.accounting and not self.slurm:
            raise ConfigError("accounting: needs Slurm; leave out --accounting or --no-slurm")
        if self.prolog is not None:
            object.__setattr__(self, "prolog", self.prolog.absolute())
            if not SAFE_PATH.fullmatch(str(self.prolog)):
                raise ConfigError(f"prolog {shown(self.prolog)}: use a path of letters, digits and _+.- for Slurm")
            if not (self.prolog.is_file() and self.prolog.stat().st_mode & 0o100):
                raise ConfigError(f"prolog {self.prolog}: not an executable file; create it and chmod +x it")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))


def check_rate(rate: str | None) -> None:
    """Raises `ConfigError` for what is not the rate of a link as `tc` writes it."""
    if rate is not None and not _RATE.fullmatch(rate):
        raise ConfigError(f"link rate {rate!r}: use an integer with kbit, mbit or gbit, such as 100mbit")
