"""The commands of `glmforge monitor`."""

import typer

from glmforge_ops.cli.monitor.gpu import gpu
from glmforge_ops.cli.monitor.rules import rules
from glmforge_ops.cli.monitor.stack import dashboards, down, page, status, up
from glmforge_ops.cli.monitor.targets import targets

app = typer.Typer(no_args_is_help=True, help="Metrics, dashboards and alerts of runs and machines.")
for _command in (up, status, down, page, dashboards, targets, gpu, rules):
    app.command()(_command)
