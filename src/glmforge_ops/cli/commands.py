"""The commands that `glmforge.cli.app` takes from this package."""

import typer

from glmforge_ops.cli.checkpoint_copy import copy
from glmforge_ops.cli.cluster import bench, check, clean, dev, env, init, setup, stage
from glmforge_ops.cli.health import health
from glmforge_ops.cli.launch import chain as _chain
from glmforge_ops.cli.launch import jobs as _jobs
from glmforge_ops.cli.launch import sweep as _sweep
from glmforge_ops.cli.launch.launch import launch, supervise
from glmforge_ops.cli.monitor import app as _monitor
from glmforge_ops.cli.watched_job import run_of_job

_cluster = typer.Typer(
    no_args_is_help=True, help="Check, tune and set up nodes; a development cluster on this machine."
)
for _command in (init.init, check.check, setup.setup, env.env, bench.bench, stage.stage, clean.clean):
    _cluster.command()(_command)
_cluster.add_typer(dev.app, name="dev")
GROUPS = {"cluster": _cluster, "jobs": _jobs.app, "sweep": _sweep.app, "chain": _chain.app, "monitor": _monitor.app}

__all__ = ["GROUPS", "copy", "health", "launch", "run_of_job", "supervise"]
