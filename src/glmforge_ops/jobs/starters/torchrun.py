"""Ranks by torchrun, one on each node: started by srun in a Slurm job, else through ssh, or here for one node.

Why it never restarts or admits anybody by itself: see `glmforge_ops.jobs.ranks.agent`.
"""

import os
from collections.abc import Sequence

from glmforge.runtime.ssh import Ssh
from glmforge_ops.jobs.starters.base import Ranks, Running
from glmforge_ops.jobs.starters.running import ranks_command, spawn, write_assignment
from glmforge_ops.jobs.starters.srun import (
    Step,
    ask_by_srun,
    container_options,
    end_leftovers,
    srun_environment,
    srun_options,
    step_name,
)
from glmforge_ops.jobs.starters.ssh import SshStarter


class TorchrunStarter:
    """Starts one torchrun on each node (`Starter`). `ssh`: how nodes are reached outside Slurm."""

    name = "torchrun"

    def __init__(self, ssh: Ssh | None = None) -> None:
        self.ssh = ssh or Ssh()

    def start(self, ranks: Ranks) -> Running:
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            write_assignment(ranks)
            return SshStarter(self.ssh).start_nodes(ranks, "--torchrun")
        end_leftovers(job)
        container = container_options(ranks)
        write_assignment(ranks, container_by_starter=bool(container))
        name = step_name(ranks)
        per_node = ranks_command(ranks.directory.root, "--slurm-node", "--torchrun")
        command = [*srun_options(ranks, name, 1), *container, *per_node]
        environment = srun_environment(ranks, ranks.ranks_per_node)
        return Step(job, name, ranks, spawn(command, ranks, environment=environment, ends_with_us=True))

    def ask(self, node: str, words: Sequence[str]) -> str:
        return ask_by_srun(node, words) if "SLURM_JOB_ID" in os.environ else SshStarter(self.ssh).ask(node, words)
