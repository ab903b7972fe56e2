"""`glmforge cluster env`: environment variables of a job, written, or those of the user's scripts checked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmforge_ops.environment.lint import Finding
    from glmforge_ops.environment.script import Wanted


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
    nccl: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Oldest NCCL it is to work with.", show_default="2.27")
    ] = None,
    shell: Annotated[
        str,
        typer.Option(metavar="FORM", help="bash: to source, or to run before a command; slurm: a task prolog; json."),
    ] = "bash",
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="standard output")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    lint: Annotated[
        bool, typer.Option("--lint", help="Check variables in your own scripts, .env files, Dockerfiles, YAML.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="With --lint: fail on warnings, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --lint: print JSON instead of a table.")] = False,
) -> None:
    """Write the environment variables of a training job, or check those in your own scripts.

    What is written is a script that says of each variable what it does and when to change it, leaves alone what you
    have set, and looks for interfaces, RDMA devices and cores on the node that runs it. --lint looks for settings that
    are known to do nothing or to do harm, and fails on errors.

    Examples:

        glmforge cluster env --network roce --out env.sh

        glmforge cluster env --network tcp --interface eth1 --shell slurm --out /shared/task_prolog.sh

        glmforge cluster env --lint train.sbatch Dockerfile
    """
    from glmforge.errors import ConfigError
    from glmforge_ops.environment.script import NCCL, Wanted

    if lint:
        _lint(files or [], strict=strict, as_json=as_json)
        return
    if files:
        raise ConfigError(f"{files[0]}: files are for --lint; --out names the file to write")
    if strict or as_json:
        raise ConfigError(f"{'--strict' if strict else '--json'} is for --lint; --shell json prints the table")
    names, devices = _names(interface), _names(device)
    _write(Wanted(network, names, devices, nccl or NCCL), shell, out, force)  # type: ignore[arg-type]  # checked by it


def _names(listed: str | None) -> tuple[str, ...]:
    return tuple(listed.split(",")) if listed is not None else ()


def _write(wanted: "Wanted", shell: str, out: Path | None, force: bool) -> None:
    from glmforge.data.files import refuse_unwritable, write_whole
    from glmforge.errors import ConfigError
    from glmforge_ops.environment.script import FORMS, as_dict, as_script

    if shell not in FORMS:
        raise ConfigError(f"unknown form {shell!r}: one of {', '.join(FORMS)}")
    if out is not None:
        refuse_unwritable(out, force)
    text = json.dumps(as_dict(wanted), indent=2) + "\n" if shell == "json" else as_script(wanted, shell)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_whole(out, text.encode())
    if shell != "json":
        out.chmod(0o755)
    typer.echo(f"{out}: read it, then " + _NEXT.get(shell, "parse it"), err=True)


_NEXT = {"bash": "source it on every node before training", "slurm": "srun --task-prolog=FILE, by its whole path"}


def _lint(files: list[Path], *, strict: bool, as_json: bool) -> None:
    from glmforge.errors import ConfigError
    from glmforge_ops.environment.lint import lint_files

    if not files:
        raise ConfigError("--lint needs files to check: glmforge cluster env --lint train.sbatch")
    findings = lint_files(files)
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        found = {"errors": errors, "warnings": len(findings) - errors, "findings": [one.as_dict() for one in findings]}
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(findings)
        typer.echo(f"errors: {errors}, warnings: {len(findings) - errors}, in files: {len(files)}", err=True)
    if errors or (strict and findings):
        raise typer.Exit(1)


def _print(findings: "list[Finding]") -> None:
    """A line of place and problem per finding, as compilers print them, and what should stand there below it."""
    for finding in findings:
        value = "" if finding.value is None else f"={finding.value}"
        typer.echo(f"{finding.place}: {finding.severity}: {finding.name}{value}: {finding.problem}")
        typer.echo(f"    instead: {finding.instead}")
