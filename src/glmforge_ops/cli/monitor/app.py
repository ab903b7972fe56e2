"""The commands of `glmforge monitor`."""

import typer

from glmforge_ops.cli.monitor.gpu import gpu
from glmforge_ops.cli.monitor.rules import rules
from glmforge_ops.cli.monitor.targets import targets

app = typer.Typer(no_args_is_help=True, help="Metrics, dashboards and alerts of runs and machines.")
app.command()(targets)
app.command()(gpu)
app.command()(rules)
