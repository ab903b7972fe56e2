"""`glmforge debug`: what to hand to whoever is asked for help with a run."""

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Collect what explains a run, without secrets.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group with one command keeps its name."""


@app.command()
def bundle(
    run: Annotated[Path, typer.Argument(help="Directory of a run, live or dead.")],
    output: Annotated[
        Path | None, typer.Option(help="The archive; default: RUN-debug-TIME.tar.gz in this directory.")
    ] = None,
) -> None:
    """Pack system, versions, configuration, logs, metrics, events and checkpoint list of a run into one archive.

    Tokens, passwords, keys, URLs with credentials and values of environment variables are removed. Weights and data are
    not included. Look through the archive before you send it: a secret without a known form or name is kept.

    Example:

        glmforge debug bundle runs/demo --output demo-debug.tar.gz
    """
    from glmforge.doctor.bundle import make_bundle
    from glmforge.files import escaped
    from glmforge.observe.units import format_bytes

    path, made = make_bundle(run, output)
    size = format_bytes(path.stat().st_size)
    typer.echo(f"{path}: {len(made.members)} files, {size}; secrets removed: {made.redactor.count}")
    for name, why in made.left_out.items():
        if why != os.strerror(errno.ENOENT):  # no run has all files
            typer.echo(escaped(f"left out {name}: {why}"), err=True)
