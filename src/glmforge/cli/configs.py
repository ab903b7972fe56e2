"""`glmforge configs`: configurations and examples that come with the package."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from glmforge.cli.tables import print_table, table

app = typer.Typer(
    no_args_is_help=True, help="Configurations and examples that come with the package; Megatron-LM's arguments."
)


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


@app.command("to-megatron")
def to_megatron(
    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Configuration overrides: key.sub=value ...")] = None,
    phase: Annotated[str | None, typer.Option(help="Phase of the run; default: the first.")] = None,
) -> None:
    """Print the arguments of Megatron-LM's pretrain_gpt.py (core_v0.16) for a phase of a run.

    What they cannot express of the run is listed on stderr, with what it becomes.

    Example:

        glmforge configs to-megatron configs/small_1b.yaml parallel.tp=2 > arguments
    """
    from glmforge.config.load import load_config
    from glmforge.config.megatron import to_arguments

    words, lacking = to_arguments(load_config(config, overrides or ()), phase)
    typer.echo(shlex.join(words))
    for line in lacking:
        typer.echo(f"not expressed: {line}", err=True)


@app.command("from-megatron")
def from_megatron(
    script: Annotated[Path, typer.Argument(help="Shell script or file of arguments; /dev/stdin for a pipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Configuration overrides: key.sub=value ...")] = None,
) -> None:
    """Print a run's YAML from the arguments of Megatron-LM's pretrain_gpt.py (core_v0.16).

    Nothing of the script is executed. Unknown arguments are errors; those without a counterpart are comments in the
    YAML.

    Example:

        glmforge configs from-megatron pretrain_glm.sh data.tokenizer=data/tokenizer > run.yaml
    """
    from glmforge.config.load import dump_config
    from glmforge.config.megatron import from_arguments
    from glmforge.config.megatron_words import words_of_script
    from glmforge.errors import ConfigError
    from glmforge.files import escaped, read_text

    text = read_text(script, error=ConfigError, max_bytes=1 << 18)
    read = from_arguments(words_of_script(text, f"{script}"), f"{script}", overrides or ())
    comments = [f"not read: {line}" for line in read.not_read]
    if read.speed_only:
        comments.append(f"not needed, does not change what is learnt: {', '.join(read.speed_only)}")
    for line in [f"From the arguments of Megatron-LM in {script}.", *comments]:
        typer.echo(escaped(f"# {line}"))
    typer.echo(dump_config(read.config) if overrides else read.text, nl=False)
