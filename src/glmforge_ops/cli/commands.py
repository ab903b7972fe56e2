"""The commands that `glmforge.cli.app` takes from this package."""

from glmforge_ops.cli.checkpoint_copy import copy
from glmforge_ops.cli.cluster import app as _cluster
from glmforge_ops.cli.health import health
from glmforge_ops.cli.launch import chain as _chain
from glmforge_ops.cli.launch import jobs as _jobs
from glmforge_ops.cli.launch import sweep as _sweep
from glmforge_ops.cli.launch.launch import launch, supervise

GROUPS = {"cluster": _cluster.app, "jobs": _jobs.app, "sweep": _sweep.app, "chain": _chain.app}

__all__ = ["GROUPS", "copy", "health", "launch", "supervise"]
