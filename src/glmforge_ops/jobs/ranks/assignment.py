"""What the ranks of an attempt run: the file `ranks.json`, written by a starter, read on every node.

A file rather than arguments: environments hold secrets, which a command line shows to every user of the machine.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from glmforge.errors import LaunchError
from glmforge.files import open_regular

FILE = "ranks.json"


@dataclass(frozen=True)
class Assignment:
    """The ranks of an attempt: `ranks_per_node` on each of `nodes`, numbered node by node.

    Attributes:
        command: of every rank, which runs in `cwd`.
        environment: variables besides those that a rank gets anyway.
        secrets: names of more of them, whose values are the supervisor's own and stand in no file.
        address, port: where ranks meet: an address of the first node that all nodes reach.
        interface: between nodes; None: that of the route to `address`.
        container: image that every rank runs in.
        grace_s: that ranks have to end by themselves after a signal.
        requeue: under Slurm: queue the job again if the supervisor's node is lost.
    """

    command: list[str]
    cwd: str
    nodes: list[str]
    ranks_per_node: int
    address: str
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    interface: str | None = None
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    container: str | None = None
    grace_s: float = 60.0
    requeue: bool = False

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Raises `LaunchError` if it is not there, or was written by another version."""
        path = directory / FILE
        try:
            with open_regular(path) as file:
                return cls(**json.loads(file.read()))
        except OSError as error:
            raise LaunchError(
                f"{path}: cannot be read here ({error.strerror}); put the jobs' directory on storage that all nodes see"
            ) from None
        except (ValueError, TypeError) as error:
            raise LaunchError(f"{path}: written by another version ({error}); start the attempt again") from None

    def write(self, directory: Path) -> None:
        """For its owner only."""
        new = directory / f"{FILE}.new"
        with open(new, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(directory / FILE)
