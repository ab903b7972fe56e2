"""`glmforge report`: a run as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; report.html in the run by default.")] = None,
) -> None:
    """Write a run's report: loss, learning rate, throughput, expert balance, evaluation, configuration.

    Example:

        glmforge report runs/demo
    """
    from glmforge.report.report import write_report

    typer.echo(f"{write_report(run, out)}")
