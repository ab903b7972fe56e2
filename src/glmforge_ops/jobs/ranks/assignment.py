"""What the ranks of an attempt are to do: the file `ranks.json`, written by a starter, read on every node.

A file rather than arguments: environments hold secrets, which a command line shows to everybody on the machine, and
every starter would quote it in another way.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from glmforge.errors import LaunchError
from glmforge.files import open_regular

FILE = "ranks.json"
_MAX_BYTES = 8 << 20
_TYPES: dict[str, tuple[type, ...]] = {
    "command": (list,),
    "cwd": (str,),
    "environment": (dict,),
    "nodes": (list,),
    "ranks_per_node": (int,),
    "address": (str,),
    "port": (int,),
    "interface": (str, type(None)),
    "gpus_per_node": (int,),
    "cpus_per_task": (int, type(None)),
    "grace_s": (int, float),
    "log_bytes": (int, type(None)),
    "step_pattern": (str, type(None)),
}


@dataclass(frozen=True)
class Assignment:
    """As `glmforge_ops.jobs.starters.base.Ranks` describes it.

    Attributes:
        log_bytes: most bytes of a rank's log; None: as much as it prints.
        step_pattern: regular expression whose first group is the step, sought in each line; None: none is sought.
    """

    command: list[str]
    cwd: str
    environment: dict[str, str]
    nodes: list[str]
    ranks_per_node: int
    address: str
    port: int
    interface: str | None
    gpus_per_node: int
    cpus_per_task: int | None
    grace_s: float
    log_bytes: int | None = None
    step_pattern: str | None = None

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Raises `LaunchError` if there is none, or one of another program."""
        path = directory / FILE
        try:
            with open_regular(path) as file:
                content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise LaunchError(
                f"{path}: cannot be read here ({error.strerror}); the jobs' directory must lie on storage that all "
                "nodes see"
            ) from None
        try:
            given = json.loads(content) if len(content) <= _MAX_BYTES else None
        except ValueError:
            given = None
        return cls._of(given, path)

    @classmethod
    def _of(cls, given: Any, path: Path) -> Self:
        known = {field.name for field in fields(cls)}
        wrong = "the whole" if not isinstance(given, dict) else _first_wrong(given)
        if wrong is not None:
            raise LaunchError(f"{path}: {wrong} is not what a starter of this version writes; start the attempt again")
        return cls(**{name: value for name, value in given.items() if name in known})

    def write(self, directory: Path) -> None:
        """For its owner only."""
        path = directory / FILE
        new = path.with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node


def _first_wrong(given: dict[str, Any]) -> str | None:
    for name, types in _TYPES.items():
        if not isinstance(given.get(name), types) or (isinstance(given.get(name), bool)):
            return name
    texts = [*given["command"], *given["nodes"], *given["environment"].values()]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        return "command, nodes or environment"
    return None if given["command"] and given["nodes"] and given["ranks_per_node"] > 0 else "command or nodes"
