"""`glmforge monitor targets`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from glmforge.errors import GlmforgeError


def targets(
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR...", help="Runs, or directories that hold runs.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File for Prometheus' file_sd_configs. None: print it.")] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Add node and GPU exporters on the nodes of your running Slurm jobs.")
    ] = False,
    watch: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Look again so often, until interrupted.")
    ] = None,
    node_port: Annotated[int, typer.Option(min=1, max=65_535, help="Node exporter's, with --slurm.")] = 9100,
    gpu_port: Annotated[
        int, typer.Option(min=1, max=65_535, help="dcgm-exporter's or 'monitor gpu's, with --slurm.")
    ] = 9400,
) -> None:
    """List what Prometheus is to scrape: processes of runs (observe.prometheus), nodes and their GPUs.

    Example:

        glmforge monitor targets runs --output /etc/prometheus/glmforge.json --watch 10
    """
    from glmforge_ops.monitor.targets import Target, file_sd, targets_of_runs, targets_of_slurm, write_if_changed

    if not directories and not slurm:
        raise typer.BadParameter("name directories of runs, or pass --slurm")
    if watch is not None and output is None:
        raise typer.BadParameter("--watch needs --output FILE")
    said: set[str] = set()

    def look() -> list[Target]:
        found, problems = targets_of_runs(directories or [])
        found += targets_of_slurm(node_port, gpu_port) if slurm else []
        for problem in problems:
            if problem not in said:
                typer.echo(f"glmforge: skipped {problem}", err=True)
        said.update(problems)
        return found

    while True:
        try:
            found = look()
            if output is None:
                typer.echo(file_sd(found), nl=False)
            elif write_if_changed(output, file_sd(found)):
                typer.echo(f"{output}: {len(found)} targets")
        except GlmforgeError as error:
            if watch is None:
                raise
            typer.echo(f"glmforge: {error}; looking again in {watch:g} s", err=True)
        if watch is None:
            return
        time.sleep(watch)
