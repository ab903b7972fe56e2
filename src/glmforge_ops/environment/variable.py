"""One environment variable of a training job: what it does, what we make of it, and who says so."""

from dataclasses import dataclass
from typing import Literal

Network = Literal["infiniband", "roce", "tcp"]
"""How NCCL's bytes travel between nodes: InfiniBand, RDMA over Ethernet (RoCE), or plain sockets."""
NETWORKS: tuple[Network, ...] = ("infiniband", "roce", "tcp")
RDMA: tuple[Network, ...] = ("infiniband", "roce")

Group = Literal["NCCL", "PyTorch", "gloo", "CUDA", "allocator", "OpenMP", "pinning", "caches", "tokenizers", "logging"]

Finder = Literal[
    "interface",
    "exact_interface",
    "family",
    "infiniband_devices",
    "roce_devices",
    "gid_index",
    "socket_threads",
    "threads",
    "cache",
]
"""What the script looks for on the node that runs it; the bash that does is in `finders.sh`."""

FOUND: dict[Finder, str] = {
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


@dataclass(frozen=True)
class Variable:
    """A row of the table.

    Attributes:
        value: what the script sets; None if it looks for it (`found`) or leaves the variable alone.
        found: what the script looks for on each node.
        networks: where the script sets it; None: everywhere.
        default: what holds where it is not set.
        meaning: what it does, in a sentence.
        change: when to set it to something else, in a sentence.
        source: the page that documents it.
        by_glmforge: glmforge sets `value` itself unless the user did, so that the script need not.
        nccl: the versions of NCCL for which the script sets it, from and below; an empty end is open.
    """

    name: str
    group: Group
    meaning: str
    default: str
    change: str
    source: str
    value: str | None = None
    found: Finder | None = None
    networks: tuple[Network, ...] | None = None
    by_glmforge: bool = False
    nccl: tuple[str, str] = ("", "")

    @property
    def is_set(self) -> bool:
        """Whether the script sets it, on some network."""
        return (self.value is not None or self.found is not None) and not self.by_glmforge

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
