"""The variables of a training job (`variables.toml`), for scripts, documentation and checks.

Code of glmforge that sets a variable itself has a row here too, with the same value (a test compares).
"""

import tomllib
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from typing import Literal, get_args

Network = Literal["infiniband", "roce", "tcp"]
"""How NCCL's bytes travel between nodes: InfiniBand, RDMA over Ethernet (RoCE), or plain sockets."""
NETWORKS: tuple[Network, ...] = get_args(Network)


@dataclass(frozen=True)
class Variable:
    """A row of the table.

    Attributes:
        default: the value where nothing sets it.
        set: what the script sets; None if it looks for the value (`find`) or does not set the variable.
        find: what the script looks for on each node, a key of `FOUND`.
        directory: of a cache, its name.
        networks: where the script sets it; None: everywhere.
        by_glmforge: glmforge sets the value itself unless the user did, so the script need not.
    """

    name: str
    group: str
    meaning: str
    default: str
    change: str
    source: str
    set: str | None = None
    find: str | None = None
    directory: str = ""
    networks: tuple[Network, ...] | None = None
    by_glmforge: bool = False

    @property
    def is_set(self) -> bool:
        """Whether the script sets it, on some network."""
        return (self.set is not None or self.find is not None) and not self.by_glmforge

    @property
    def bash(self) -> str | None:
        """What the script sets, as a word of bash."""
        return FOUND[self.find]["bash"].replace("DIRECTORY", self.directory) if self.find else self.set

    def is_for(self, network: Network) -> bool:
        """Whether it means something on `network`."""
        return self.networks is None or network in self.networks


def packaged(name: str) -> str:
    """The text of a file of this room."""
    return resources.files("glmforge_ops.environment").joinpath(name).read_text(encoding="utf-8")


_TABLE = tomllib.loads(packaged("variables.toml"))
FOUND: dict[str, dict[str, str]] = _TABLE["found"]
"""What the script looks for on the node that runs it: `bash` and `words`."""
VARIABLES = tuple(
    Variable(**row | ({"networks": tuple(row["networks"])} if "networks" in row else {})) for row in _TABLE["variable"]
)


def variables_markdown() -> str:
    """The table of `docs/cluster-env.md`."""
    lines = [
        "| variable | the script sets | on | without it | meaning | when to change it |",
        "|---|---|---|---|---|---|",
    ]
    for group, rows in groupby(VARIABLES, key=lambda row: row.group):
        lines.append(f"| **{group}** | | | | | |")
        lines += [_markdown(row) for row in rows]
    return "\n".join(lines) + "\n"


def _markdown(row: Variable) -> str:
    where = ", ".join(row.networks) if row.networks and row.networks != NETWORKS else ""
    cells = (f"[{row.name}]({row.source})", _what_is_set(row), where, row.default, row.meaning, row.change)
    return "| " + " | ".join(cells) + " |"


def _what_is_set(row: Variable) -> str:
    if row.by_glmforge:
        return f"glmforge sets it: `{row.set}`" if row.set else "glmforge sets it"
    if row.find:
        return FOUND[row.find]["words"]
    return f"`{row.set}`" if row.set is not None else "nothing"
