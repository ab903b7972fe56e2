"""Ranks on this machine."""

import os
import subprocess
from collections.abc import Sequence

from glmforge.errors import LaunchError
from glmforge_ops.jobs.starters.base import Ranks
from glmforge_ops.jobs.starters.controlled import ControlledNodes
from glmforge_ops.jobs.starters.running import ask, ranks_command, spawn, write_assignment


class LocalStarter:
    """Starts all ranks here, whatever the one node is called (`Starter`)."""

    name = "local"

    def start(self, ranks: Ranks) -> ControlledNodes:
        if len(ranks.nodes) != 1:
            raise LaunchError(f"the starter local has this node alone, not {len(ranks.nodes)}; choose ssh or srun")
        write_assignment(ranks)
        command = ranks_command(ranks.directory.root, "--node", "0", "--control")
        process = spawn(command, ranks, stdin=subprocess.PIPE)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return ControlledNodes(ranks, {ranks.nodes[0]: process})

    def ask(self, node: str, words: Sequence[str]) -> str:
        return ask(node, words)
