"""The variables of a training job (`variables.toml`), for scripts, documentation and checks.

Code of glmforge that sets a variable itself has a row here too, with the same value (a test compares).
"""

import tomllib
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from typing import Any, Literal, get_args

Network = Literal["infiniband", "roce", "tcp"]
"""How NCCL's bytes travel between nodes: InfiniBand, RDMA over Ethernet (RoCE), or plain sockets."""
NETWORKS: tuple[Network, ...] = get_args(Network)
RDMA: tuple[Network, ...] = ("infiniband", "roce")

FOUND = {
    "interface": "the interface that leads to MASTER_ADDR, else the default route's, else the fastest",
    "exact_interface": "the same, with NCCL's `=` for an exact name: `=eth0`",
    "family": "`AF_INET` if that interface has an IPv4 address, else `AF_INET6`",
    "infiniband_devices": "the fastest active InfiniBand ports: `=mlx5_0:1,mlx5_1:1`",
    "roce_devices": "the fastest active RDMA ports on Ethernet: `=mlx5_0:1,mlx5_1:1`",
    "gid_index": "the index of the RoCE v2 address, if it is the same on all ports",
    "socket_threads": "4 on a link of 50 Gbit/s or more",
    "threads": "cores of this node / ranks of this node, at most 16 beside GPUs",
    "cache": "a directory of this user in TMPDIR, or /tmp, of this node",
}
"""What the script looks for on the node that runs it; the bash that does so is in `finders.sh`."""


@dataclass(frozen=True)
class Variable:
    """A row of the table.

    Attributes:
        set: what the script sets; None if it looks for the value (`find`) or leaves the variable alone.
        find: what the script looks for on each node, a key of `FOUND`.
        networks: where the script sets it; None: everywhere.
        default: what holds where it is not set.
        by_glmforge: glmforge sets the value itself unless the user did, so the script need not.
        nccl: the versions of NCCL for which the script sets it, from and below; an empty end is open.
    """

    name: str
    group: str
    meaning: str
    default: str
    change: str
    source: str
    set: str | None = None
    find: str | None = None
    networks: tuple[Network, ...] | None = None
    by_glmforge: bool = False
    nccl: tuple[str, ...] = ("", "")

    @property
    def is_set(self) -> bool:
        """Whether the script sets it, on some network."""
        return (self.set is not None or self.find is not None) and not self.by_glmforge

    def is_for(self, network: Network) -> bool:
        """Whether it means something on `network`."""
        return self.networks is None or network in self.networks

    def is_for_nccl(self, version: tuple[int, ...]) -> bool:
        """Whether NCCL `version`, e.g. (2, 27), is among those that the row is for."""
        first, end = (parse_version(text) for text in self.nccl)
        return (not first or version >= first) and (not end or version < end)


def parse_version(text: str) -> tuple[int, ...]:
    """Numbers of "2.27.3"; empty for an empty text. Raises `ValueError`."""
    return tuple(int(part) for part in text.split(".")) if text else ()


def packaged(name: str) -> str:
    """The text of a file of this room."""
    return resources.files("glmforge_ops.environment").joinpath(name).read_text(encoding="utf-8")


def _read() -> tuple[Variable, ...]:
    rows: list[dict[str, Any]] = tomllib.loads(packaged("variables.toml"))["variable"]
    for row in rows:
        row.update({key: tuple(row[key]) for key in ("networks", "nccl") if key in row})
    return tuple(Variable(**row) for row in rows)


VARIABLES: tuple[Variable, ...] = _read()


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
    first, end = row.nccl
    version = f"NCCL {first} and later" if first else f"NCCL before {end}" if end else ""
    networks = ", ".join(row.networks) if row.networks and row.networks != NETWORKS else ""
    where = "; ".join(filter(None, (networks, version)))
    cells = (f"[{row.name}]({row.source})", _what_is_set(row), where, row.default, row.meaning, row.change)
    return "| " + " | ".join(cells) + " |"


def _what_is_set(row: Variable) -> str:
    if row.by_glmforge:
        return f"glmforge sets it: `{row.set}`" if row.set else "glmforge sets it"
    if row.find:
        return FOUND[row.find]
    return f"`{row.set}`" if row.set is not None else "nothing"
