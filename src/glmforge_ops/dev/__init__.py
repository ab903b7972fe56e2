"""A development cluster: real Slurm and ssh on one machine, each node a host of its own where that is allowed."""

from glmforge_ops.dev.cluster import DevCluster, development_cluster
from glmforge_ops.dev.state import HEAD, DevOptions

__all__ = ["HEAD", "DevCluster", "DevOptions", "development_cluster"]
