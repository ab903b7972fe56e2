"""With how many nodes the launcher has started the run: after a node is lost it may be fewer than the run bears."""

from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.runtime.launch import LaunchEnvironment


def check_nodes(config: RunConfig) -> None:
    """Raise `ConfigError` on fewer nodes than `fault_tolerance.min_nodes`."""
    present, least = LaunchEnvironment.read().num_nodes, config.fault_tolerance.min_nodes
    if present < least:
        raise ConfigError(
            f"fault_tolerance.min_nodes: {least}, but the launcher started {present}; add nodes, or set it to "
            f"{present} to continue with fewer"
        )
