"""`glmforge cluster env`: environment variables of a job, written, or those of the user's scripts checked."""

from pathlib import Path
from typing import Annotated

import typer


def env(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="With --lint: files to check.")
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            metavar="NETWORK", help="What connects nodes: infiniband, roce, tcp; auto: each node looks for itself."
        ),
    ] = "auto",
    interface: Annotated[
        str | None,
        typer.Option(metavar="IF[,IF]", help="Network interfaces of every node.", show_default="looked for on each"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="HCA[,HCA]", help="RDMA devices of every node.", show_default="looked for on each"),
    ] = None,
    shell: Annotated[
        str, typer.Option(metavar="FORM", help="bash: to source, or to run before a command; slurm: a task prolog.")
    ] = "bash",
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="standard output")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    lint: Annotated[
        bool, typer.Option("--lint", help="Check variables in your own scripts, .env files, Dockerfiles, YAML.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="With --lint: fail on warnings, too.")] = False,
) -> None:
    """Write the environment variables of a training job, or check those in your own scripts.

    The script explains each variable, leaves alone what you have set, and looks for interfaces, RDMA devices and cores
    on the node that runs it. --lint looks for settings that are known to do nothing or to do harm, and fails on errors.

    Examples:

        glmforge cluster env --network roce --out env.sh

        glmforge cluster env --network tcp --interface eth1 --shell slurm --out /shared/task_prolog.sh

        glmforge cluster env --lint train.sbatch Dockerfile
    """
    from glmforge.data.files import refuse_unwritable, write_whole
    from glmforge.errors import ConfigError
    from glmforge_ops.environment.script import FORMS, Wanted, as_script

    if lint:
        _lint(files or [], strict)
        return
    if files or strict:
        raise ConfigError("files and --strict are for --lint; --out names the file to write")
    names, devices = (tuple(listed.split(",")) if listed is not None else () for listed in (interface, device))
    wanted = Wanted(network, names, devices)  # type: ignore[arg-type]  # checked by it
    if shell not in FORMS:
        raise ConfigError(f"unknown form {shell!r}: one of {', '.join(FORMS)}")
    if out is None:
        typer.echo(as_script(wanted, shell), nl=False)
        return
    refuse_unwritable(out, force)
    write_whole(out, as_script(wanted, shell).encode())
    out.chmod(0o755)
    use = "source it on every node before training" if shell == "bash" else "give its path to srun --task-prolog"
    typer.echo(f"{out}: read it, then {use}", err=True)


def _lint(files: list[Path], strict: bool) -> None:
    """Print place and problem of each finding, as compilers do, and what to write instead."""
    from glmforge.errors import ConfigError
    from glmforge_ops.environment.lint import lint_files

    if not files:
        raise ConfigError("--lint needs files to check: glmforge cluster env --lint train.sbatch")
    findings = lint_files(files)
    errors = sum(finding.severity == "error" for finding in findings)
    for finding in findings:
        value = "" if finding.value is None else f"={finding.value}"
        typer.echo(f"{finding.source}:{finding.line}: {finding.severity}: {finding.name}{value}: {finding.problem}")
        typer.echo(f"    instead: {finding.instead}")
    typer.echo(f"errors: {errors}, warnings: {len(findings) - errors}, in files: {len(files)}", err=True)
    if errors or (strict and findings):
        raise typer.Exit(1)
