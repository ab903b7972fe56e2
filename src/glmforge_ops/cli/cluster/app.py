"""`glmforge cluster`: nodes checked and set up, and a cluster to develop on."""

import typer

from glmforge_ops.cli.cluster import bench, check, clean, dev, env, init, setup, stage

app = typer.Typer(no_args_is_help=True, help="Check, tune and set up nodes; a development cluster on this machine.")
app.command("init")(init.init)
app.command("check")(check.check)
app.command("setup")(setup.setup)
app.command("env")(env.env)
app.command("bench")(bench.bench)
app.command("stage")(stage.stage)
app.command("clean")(clean.clean)
app.add_typer(dev.app, name="dev")
