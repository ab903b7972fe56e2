"""With how many nodes the launcher has started the run: after a node is lost it may be fewer than the run bears."""

import os

from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError


def num_nodes() -> int:
    """Nodes, as torchrun tells its workers: one agent each. 1 without a launcher."""
    environment = os.environ
    if "GROUP_WORLD_SIZE" in environment:
        return int(environment["GROUP_WORLD_SIZE"])
    ranks = int(environment.get("WORLD_SIZE", "1"))
    return ranks // int(environment.get("LOCAL_WORLD_SIZE", ranks))


def check_nodes(config: RunConfig) -> None:
    """Raise `ConfigError` on fewer nodes than `fault_tolerance.min_nodes`."""
    present, least = num_nodes(), config.fault_tolerance.min_nodes
    if present < least:
        raise ConfigError(
            f"fault_tolerance.min_nodes: {least}, but the launcher started {present}; bring nodes back, or set it to "
            f"{present} to go on with fewer"
        )
