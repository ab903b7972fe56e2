"""`glmforge configs`: configurations and examples that come with the package."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from glmforge.cli.tables import print_table, table

app = typer.Typer(no_args_is_help=True, help="Configurations and examples that come with the package.")


@app.command("list")
def list_configs(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output (JSON).")] = False,
) -> None:
    """List them, with what each is.

    Example:

        glmforge configs list
    """
    from glmforge.config.packaged import packaged

    found = packaged()
    if as_json:
        typer.echo(json.dumps([{"name": each.name, "path": str(each.path), "about": each.about} for each in found]))
        return
    rows = table("name", "what it is", in_words=("name", "what it is"))
    for each in found:
        rows.add_row(each.name, escape(each.about))
    print_table("", rows, Console(highlight=False))
    typer.echo("Next: glmforge configs copy NAME .    Runs called by name: glmforge train demo", err=True)


@app.command("copy")
def copy(
    name: Annotated[str, typer.Argument(help="Name from 'glmforge configs list'.")],
    to: Annotated[Path, typer.Argument(metavar="DEST", help="Target directory or file name.")],
) -> None:
    """Copy one, to be changed: a configuration with those that it extends, an example's whole folder.

    Examples:

        glmforge configs copy small_1b .

        glmforge configs copy examples/slurm my-jobs
    """
    from glmforge.config.packaged import copy_packaged

    for path in copy_packaged(name, to):
        typer.echo(path)
