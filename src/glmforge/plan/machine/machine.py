"""The machine that a job runs on: a kind of GPU, so many of them to a node, and a network between nodes."""

from dataclasses import dataclass

from glmforge.errors import ConfigError
from glmforge.plan.machine.hardware import ACCELERATORS, Accelerator, find_accelerator
from glmforge.plan.machine.network import Network, find_network


@dataclass(frozen=True)
class Machine:
    """What a planner has to know of a cluster. Ranks that follow one another are in one node as long as it has room."""

    accelerator: Accelerator
    network: Network
    ranks_per_node: int = 8

    @property
    def link_bandwidth(self) -> float:
        """Bytes per second each way between two nodes, for each rank when all of them send."""
        return self.network.bandwidth_per_rank(self.ranks_per_node)


def find_machine(gpu: str, network: str = "ib400", ranks_per_node: int = 8) -> Machine:
    """A machine by the names of its parts. Raises `ConfigError` for what is not known."""
    accelerator = find_accelerator(gpu) or next((row for row in ACCELERATORS if _short(row.name) == _short(gpu)), None)
    if accelerator is None:
        raise ConfigError(f"--gpu: '{gpu}' is not known; known are {', '.join(row.name for row in ACCELERATORS)}")
    return Machine(accelerator, find_network(network), ranks_per_node)


def _short(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
