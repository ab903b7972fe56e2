"""What starts the ranks of an attempt.

A starter takes the nodes it is given and no others: which they are is the supervisor's choice. Whatever the starter,
each rank is started by `jobs.ranks` on its node, which sets the variables that every training program knows,
keeps the rank's log and its record, and ends it when the one who asked for it is gone.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from glmforge.errors import LaunchError
from glmforge.observe.job_records import AttemptDirectory


@dataclass(frozen=True)
class Ranks:
    """The ranks of an attempt: `ranks_per_node` on each of `nodes`, numbered node by node.

    Attributes:
        directory: of the attempt; exists already, on storage that all nodes see.
        command: of every rank.
        environment: variables besides those that a rank gets anyway.
        secrets: more of them, whose values are this process's own, and are not to stand in any file.
        address, port: where ranks meet: an address of the first node that all nodes reach.
        interface: between nodes; None: that of the route to `address`.
        cwd: the directory in which they run.
        grace_s: that ranks have to end by themselves after a signal, or after one of them has failed.
        log_bytes: most bytes of each rank's log; None: as much as it prints.
        step_pattern: regular expression whose first group is the step, sought in the output of a program that does
            not write GLMFORGE_STEP_FILE.
    """

    directory: AttemptDirectory
    nodes: tuple[str, ...]
    ranks_per_node: int
    command: tuple[str, ...]
    cwd: Path
    address: str
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    interface: str | None = None
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    container: str | None = None
    grace_s: float = 60.0
    log_bytes: int | None = None
    step_pattern: str | None = None

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node


class Running(Protocol):
    """Ranks that were started."""

    def poll(self) -> int | None:
        """The starter's status once all ranks that can be reached have ended; negative: a signal."""

    def signal(self, number: signal.Signals) -> None:
        """To every rank."""

    def kill(self) -> None:
        """End every process on every node that can be reached, and wait for it, for a bounded time."""


class Starter(Protocol):
    """Starts ranks. Raises `LaunchError` if its program is not there."""

    name: str

    def start(self, ranks: Ranks) -> Running: ...

    def ask(self, node: str, words: Sequence[str]) -> str:
        """What a program prints on a node, reached in the way in which ranks are.

        Raises `LaunchError` if the program fails, `SilentNodeError` if the node does not answer.
        """


class SilentNodeError(LaunchError):
    """A node that was asked is not reached, or does not answer: the node's fault, as far as can be seen from here."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(f"{node}: {why}")
        self.node = node
