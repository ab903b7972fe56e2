"""The commands of `glmforge monitor`."""

import typer

from glmforge_ops.cli.monitor.rules import rules

app = typer.Typer(no_args_is_help=True, help="Metrics, dashboards and alerts of runs and machines.")
app.command()(rules)
