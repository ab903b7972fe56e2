"""`glmforge jobs`: jobs by name, whatever launched them."""

import typer

from glmforge.cli.launch.jobs import list as listing
from glmforge.cli.launch.jobs import logs, show

app = typer.Typer(no_args_is_help=True, help="Jobs by name: list, show, read, follow, cancel, submit again.")
app.command("list")(listing.list_jobs)
app.command("show")(show.show)
app.command("logs")(logs.logs)
app.command("follow")(logs.follow)
