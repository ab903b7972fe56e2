"""How many nodes a job asks for: asked in scripts, and compared with what there is before one is submitted."""

from glmforge.config.launch import LaunchConfig


def least_nodes(launch: LaunchConfig) -> int:
    """With fewer it never starts.

    Slurm gives a supervised job as many of a range as there are; elsewhere spares are asked for like the other nodes.
    """
    if _is_range(launch):
        return launch.supervisor.min_nodes or launch.nodes
    return launch.nodes + launch.supervisor.spare_nodes


def most_nodes(launch: LaunchConfig) -> int:
    """It has use for no more when it starts; spares included."""
    if _is_range(launch):
        return max(launch.nodes, launch.supervisor.max_nodes or 0) + launch.supervisor.spare_nodes
    return least_nodes(launch)


def _is_range(launch: LaunchConfig) -> bool:
    return launch.launcher == "slurm" and launch.supervise
