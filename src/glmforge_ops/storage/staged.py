"""What a staging has done so far, and in the end: by node, and in bytes."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class StagedNode:
    """What became of a node. `problem` is empty if it has everything now; `note` tells of a detour."""

    host: str
    problem: str = "was not finished"
    note: str = ""
    had_bytes: int = 0
    came_bytes: int = 0
    relayed: bool = False

    @property
    def is_done(self) -> bool:
        return not self.problem


@dataclass
class Staged:
    """What was done. `source_bytes` were read from the source; the others went from node to node, the relayed ones
    through this machine."""

    num_files: int
    total_bytes: int
    nodes: dict[str, StagedNode]
    source_bytes: int = 0
    peer_bytes: int = 0
    relayed_bytes: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> list[StagedNode]:
        return [node for node in self.nodes.values() if not node.is_done]


Report = Callable[[Staged], None]
"""Called now and then while the work goes on."""
