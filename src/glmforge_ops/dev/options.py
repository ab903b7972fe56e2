"""What a development cluster is to be like."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glmforge.errors import ConfigError
from glmforge.files import shown
from glmforge_ops.dev.places import SAFE_PATH

MAX_NODES = 200
"""As many addresses as a cluster's network has, less the head's, this machine's and some."""

MAX_GPUS = 64

HEAD = "head"
"""The host with the controller, where jobs are submitted; no node."""

Mode = Literal["namespaces", "plain"]
"""`namespaces`: each node a host of its own. `plain`: daemons of this user on the loopback, under the nodes' names."""

_RATE = re.compile(r"[1-9][0-9]{0,5}(kbit|mbit|gbit)")


@dataclass(frozen=True, kw_only=True)
class DevOptions:
    """Raises `ConfigError`, one line that names the option and what it may be.

    Attributes:
        nodes: how many.
        gpus: of each node: devices that lead nowhere.
        cpus: that each node claims to have, whatever this machine has.
        slurm: with Slurm; otherwise hosts with an ssh server and nothing else.
        accounting: with slurmdbd and a database, so that sacct answers.
        prolog: program that Slurm runs as root on each node before a job.
        health_check: program that Slurm runs on each node every `health_check_interval_s` seconds.
        slurmd_timeout_s: seconds without an answer after which Slurm takes a node for down.
        grace_time_s: seconds from the warning of a job in `main` to its end when an urgent job wants its nodes.
        first_job: number of Slurm's first one. Ports are made of jobs' numbers: plain clusters at once need several.
        link_rate: of each node, in each direction, as `tc` writes it: "100mbit". None: as fast as this machine can.
        bare: nodes as they come from the factory: each with its own empty home directory, and without an ssh
            configuration that knows the others. For tests of what sets nodes up.
        shm_size: of each node's /dev/shm, as mount(8) writes it.
        mode: None: namespaces where that is allowed, else plain.
    """

    nodes: int = 3
    gpus: int = 8
    cpus: int = 8
    slurm: bool = True
    accounting: bool = False
    prolog: Path | None = None
    health_check: Path | None = None
    health_check_interval_s: int = 10
    slurmd_timeout_s: int = 30
    grace_time_s: int = 300
    first_job: int = 1
    link_rate: str | None = None
    bare: bool = False
    shm_size: str = "50%"
    mode: Mode | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("nodes", 1, MAX_NODES),
            ("gpus", 0, MAX_GPUS),
            ("cpus", 1, 1024),
            ("health_check_interval_s", 1, 3600),
            ("slurmd_timeout_s", 3, 65533),
            ("grace_time_s", 0, 65533),
            ("first_job", 1, 1_000_000),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} {getattr(self, name)}: set it to {least} to {most}")
        if self.link_rate is not None:
            check_rate(self.link_rate)
        if self.accounting and not self.slurm:
            raise ConfigError("accounting: is Slurm's, and this cluster is to have no Slurm; leave one of the two out")
        for name in ("prolog", "health_check"):
            if (program := getattr(self, name)) is not None:
                _check_program(name, program)

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))


def _check_program(name: str, program: Path) -> None:
    if not SAFE_PATH.fullmatch(str(program.absolute())):
        raise ConfigError(
            f"{name} {shown(program)}: Slurm takes only paths of letters, digits and _+.-; move the program"
        )
    if not (program.is_file() and program.stat().st_mode & 0o100):
        raise ConfigError(f"{name} {program}: is no executable file; write the program and chmod +x it")


def check_rate(rate: str) -> str:
    """The rate of a link as `tc` writes it. Raises `ConfigError`."""
    if not _RATE.fullmatch(rate):
        raise ConfigError(f"link rate {rate!r}: write a whole number and kbit, mbit or gbit, such as 100mbit")
    return rate
