"""Checkpoints of four ranks in pieces on the disks of two nodes, for tests of what collects them."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import torch.distributed as dist

from glmforge.checkpoint.node_local.consolidate import Consolidated, consolidate
from glmforge.checkpoint.node_local.transfer import Advance, Host, Transfers
from glmforge.checkpoint.save import save_local
from helpers.checkpoints import make_meta, make_tensors
from helpers.distributed import run_ranks

NODES = ("node0", "node1")
RANKS_PER_NODE = 2
LOCAL = Path("scratch/test")  # local_dir and the run's name


def write_node_disks(directory: Path, *steps: int, ephemeral: bool = False) -> None:
    """`<directory>/node<i>/scratch/test/step-N`, each with what two ranks wrote."""
    run_ranks(_save, RANKS_PER_NODE * len(NODES), directory, steps, ephemeral)


def _save(directory: Path, steps: Sequence[int], ephemeral: bool) -> None:
    root = directory / NODES[dist.get_rank() // RANKS_PER_NODE] / LOCAL
    for step in steps:
        save_local(root, step, make_tensors(step), make_meta(step, ephemeral=ephemeral))


class Node(Host):
    """A node whose disk is a directory of this machine; remembers what was fetched from it."""

    def __init__(self, transfers: Transfers, disk: Path) -> None:
        super().__init__(disk.name, transfers)
        self.disk = disk
        self.fetched: list[str] = []

    def fetch_matching(self, root: PurePosixPath, pattern: str, target: Path) -> Path:
        return super().fetch_matching(self.disk / root, pattern, target)

    def fetch(self, directory: PurePosixPath, names: Sequence[str], target: Path, advance: Advance) -> None:
        self.fetched += names
        super().fetch(self.disk / directory, names, target, advance)

    def remove(self, root: PurePosixPath, name: str | None) -> None:
        super().remove(self.disk / root, name)


def collect(root: Path, disks: Path, nodes: Sequence[Node] | None = None, **options: object) -> Consolidated | None:
    """`consolidate` over the disks that `write_node_disks` made."""
    transfers = nodes[0].transfers if nodes else Transfers()
    return consolidate(root, LOCAL, nodes or make_nodes(disks, transfers), transfers, **options)  # type: ignore[arg-type]


def make_nodes(disks: Path, transfers: Transfers) -> list[Node]:
    return [Node(transfers, disks / name) for name in NODES]
