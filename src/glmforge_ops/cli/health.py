"""`glmforge health`: the quick look at this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

_COLOURS = {"pass": "green", "warning": "yellow", "fail": "red", "skipped": "dim", "": "dim"}


def health(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CLUSTER.YAML]", help="What is expected of a node.", show_default="what it has"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the page.")] = False,
) -> None:
    """Look at this machine: GPUs, disks, memory, limits, network, versions, processes, environment variables.

    Takes about a second, changes nothing, and judges by the quick checks of 'glmforge cluster check'. Exit status 1 if
    one of them failed, a part gave no answer, or a variable is wrong.

    Examples:

        glmforge health

        glmforge health cluster.yaml --strict --json
    """
    from glmforge_ops.health.checks.examine import counts_in_words
    from glmforge_ops.health.look import look
    from glmforge_ops.hosts.machines import load_cluster

    found = look(None if config is None else load_cluster(config))
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=1))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for status, subject, words in found.lines():
            console.print(f"[{_COLOURS[status]}]{status:8}[/] {escape(f'{subject:14} {words}')}")
        console.print(counts_in_words(found.count))
    raise typer.Exit(found.exit_status(strict))
