"""What a launcher tells each process of a job: its rank, how many there are, and where they meet.

torchrun's variables are read, which Slurm and MPI jobs set as well before they start a rank. A process without a
launcher is rank 0 of one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class LaunchEnvironment:
    """The process among those of its job, and the address at which they meet.

    `attempt` counts the launcher's restarts; `agent_serves`: whether the launcher itself serves the store there.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    num_nodes: int = 1
    address: str | None = None
    port: int | None = None
    attempt: str = "0"
    agent_serves: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """As the launcher says; the nodes of a launcher that does not tell are all ranks over those of this node."""
        world_size = int(environment.get("WORLD_SIZE", "1"))
        local_world_size = int(environment.get("LOCAL_WORLD_SIZE", world_size))
        return cls(
            rank=int(environment.get("RANK", "0")),
            world_size=world_size,
            local_rank=int(environment.get("LOCAL_RANK", "0")),
            local_world_size=local_world_size,
            num_nodes=int(environment.get("GROUP_WORLD_SIZE", world_size // local_world_size)),
            address=environment.get("MASTER_ADDR"),
            port=int(environment["MASTER_PORT"]) if "MASTER_PORT" in environment else None,
            attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
            agent_serves=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def is_main(self) -> bool:
        """Whether this is the process that speaks to the user."""
        return self.rank == 0

    @property
    def is_first_of_node(self) -> bool:
        """Whether this is the process of its node that works for the others."""
        return self.local_rank == 0
