"""`glmforge jobs`: jobs by name, whatever launched them."""

import typer

from glmforge_ops.cli.launch.jobs import control, goodput, logs, show
from glmforge_ops.cli.launch.jobs import list as listing

app = typer.Typer(no_args_is_help=True, help="Jobs by name: list, show, read, follow, cancel, submit again.")
app.command("list")(listing.list_jobs)
app.command("show")(show.show)
app.command("logs")(logs.logs)
app.command("follow")(logs.follow)
app.command("cancel")(control.cancel)
app.command("resubmit")(control.resubmit)
app.command("allow")(control.allow)
app.command("goodput")(goodput.goodput)
