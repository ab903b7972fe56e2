"""`glmforge checkpoint`: what is in a checkpoint, and is it whole?

torch is imported inside the commands, so that `--help` answers at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from glmforge.checkpoint import CheckpointMeta

app = typer.Typer(help="Show and verify checkpoints.", no_args_is_help=True)

_PathArgument = Annotated[Path, typer.Argument(help="A checkpoint (step-...) or a run directory.")]


@app.command()
def show(path: _PathArgument) -> None:
    """Show what a checkpoint holds, or which checkpoints a run has and whether they are whole.

    Sizes of files are compared with the manifest; 'verify' also reads the contents.

    Example: glmforge checkpoint show runs/demo
    """
    if _is_checkpoint(path):
        _show_checkpoint(path)
    else:
        _show_run(path)


@app.command()
def verify(path: _PathArgument) -> None:
    """Read every file of a checkpoint, or of all checkpoints of a run, and compare checksums.

    Prints each problem by file name and exits with 1 if there is any.

    Example: glmforge checkpoint verify runs/demo/checkpoints/step-00000120
    """
    from glmforge.checkpoint import verify_checkpoint

    console = Console(soft_wrap=True)
    failed = False
    for checkpoint in [path] if _is_checkpoint(path) else _checkpoints_of(path):
        problems = verify_checkpoint(checkpoint)
        failed = failed or bool(problems)
        console.print(f"{checkpoint}: {'[red]broken[/]' if problems else '[green]whole[/]'}", highlight=False)
        for problem in problems:
            console.print(f"  {problem}", markup=False, highlight=False)
    if failed:
        raise typer.Exit(1)


def _is_checkpoint(path: Path) -> bool:
    return path.resolve().name.startswith("step-")


def _checkpoints_of(path: Path) -> list[Path]:
    """Of a run directory or its `checkpoints` directory, newest first."""
    from glmforge.checkpoint import list_checkpoints
    from glmforge.errors import CheckpointError

    checkpoints = list_checkpoints(path / "checkpoints") or list_checkpoints(path)
    if not checkpoints:
        raise CheckpointError(f"{path}: no checkpoints there; give a run directory or a step-... directory")
    return checkpoints


def _show_run(path: Path) -> None:
    from glmforge.checkpoint import read_meta
    from glmforge.checkpoint.manifest import find_problems, read_manifest
    from glmforge.observe.units import format_bytes

    table = Table("checkpoint", "tokens", "phase", "saved (UTC)", "size", "state")
    problems_of = {checkpoint: find_problems(checkpoint, checksums=False) for checkpoint in _checkpoints_of(path)}
    for checkpoint, problems in problems_of.items():
        if problems:
            table.add_row(checkpoint.name, "", "", "", "", "[red]broken[/]")
            continue
        meta = read_meta(checkpoint)
        size = sum(record.size for record in read_manifest(checkpoint).files.values())
        cells = (f"{meta.tokens_consumed:,}", meta.phase, meta.created, format_bytes(size))
        table.add_row(checkpoint.name, *cells, "[green]whole[/]")
    console = Console(soft_wrap=True)
    console.print(table)
    for problem in (problem for problems in problems_of.values() for problem in problems):
        console.print(problem, markup=False, highlight=False)


def _show_checkpoint(path: Path) -> None:
    from glmforge.checkpoint import read_meta
    from glmforge.checkpoint.manifest import find_problems, read_manifest
    from glmforge.observe.units import format_bytes

    console = Console(soft_wrap=True)
    facts = Table(show_header=False, box=None)
    for name, value in _facts(read_meta(path)):
        facts.add_row(name, value)
    files = Table("file", "size", "SHA-256")
    for name, record in read_manifest(path).files.items():
        files.add_row(name, format_bytes(record.size), record.sha256[:16])
    console.print(facts, files)
    for problem in find_problems(path, checksums=False):
        console.print(problem, markup=False, highlight=False)


def _facts(meta: "CheckpointMeta") -> list[tuple[str, str]]:
    samples = ", ".join(f"{phase} {count:,}" for phase, count in meta.samples_consumed.items())
    model = meta.config.get("model", {})
    return [
        ("step", f"{meta.step:,}"),
        ("phase", meta.phase),
        ("tokens", f"{meta.tokens_consumed:,}"),
        ("samples", samples),
        ("run", str(meta.config.get("name", "?"))),
        ("model", ", ".join(f"{field} {model[field]}" for field in _MODEL_FIELDS if field in model)),
        ("data", ", ".join(meta.data_fingerprint)),
        ("tokenizer", meta.tokenizer_fingerprint),
        ("ranks", str(meta.world_size)),
        ("saved (UTC)", meta.created),
        ("revision", meta.git_revision or "not from a git checkout"),
        ("versions", ", ".join(f"{library} {version}" for library, version in meta.versions.items())),
    ]


_MODEL_FIELDS = ("num_hidden_layers", "hidden_size", "n_routed_experts", "num_experts_per_tok", "vocab_size")
