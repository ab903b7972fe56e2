"""`glmforge checkpoint`: what is in a checkpoint, is it whole, and what can be made of it?

torch is imported inside the commands, so that `--help` answers at once.
"""

import json
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.checkpoint_contents import (
    checkpoints_of,
    is_checkpoint,
    local_problems,
    local_steps,
    show_checkpoint,
    show_local,
    show_run,
    show_sizes,
)
from glmforge.cli.checkpoint_deepspeed import from_deepspeed, to_deepspeed
from glmforge.cli.checkpoint_megatron import from_megatron, to_megatron
from glmforge.cli.interruptible import interruptible, progress_bar
from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.checkpoint.diff import CheckpointDifference

app = typer.Typer(help="Show, verify, collect, copy, compare and change checkpoints.", no_args_is_help=True)
app.command("from-megatron")(from_megatron)
app.command("to-megatron")(to_megatron)
app.command("copy")(import_module("glmforge_ops.cli.commands").copy)
app.command()(from_deepspeed)
app.command()(to_deepspeed)

_PathArgument = Annotated[
    Path, typer.Argument(help="A checkpoint (step-...), a run directory, or a run's directory on a node's local disk.")
]


class Position(StrEnum):
    """Where a run goes on."""

    keep = "keep"
    zero = "zero"


@app.command()
def show(
    path: _PathArgument,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Bytes by kind (weights, moments, biases, RNG): expected and actual.")
    ] = False,
) -> None:
    """Show what a checkpoint holds, or which checkpoints a run has and whether they are whole.

    Sizes of files are compared with the manifest; 'verify' also reads the contents. It exits with 1 for a checkpoint
    that is incomplete.

    Example:

        glmforge checkpoint show runs/demo

        glmforge checkpoint show runs/demo --sizes
    """
    if sizes:
        if not show_sizes(path):
            raise typer.Exit(1)
    elif local_steps(path):
        show_local(path)
    elif is_checkpoint(path):
        if not show_checkpoint(path):
            raise typer.Exit(1)
    else:
        show_run(path)


@app.command()
def verify(path: _PathArgument) -> None:
    """Read every file of a checkpoint, or of all checkpoints of a run, and compare checksums.

    Prints each problem by file name and exits with 1 if there is any. On a node's own disk, the files of the ranks
    that were there are compared with what those ranks recorded.

    Example:

        glmforge checkpoint verify runs/demo/checkpoints/step-00000120
    """
    from glmforge.checkpoint import verify_checkpoint

    console = Console(soft_wrap=True)
    failed = False
    local = local_steps(path)
    for checkpoint in local or ([path] if is_checkpoint(path) else checkpoints_of(path)):
        problems = local_problems(checkpoint) if local else verify_checkpoint(checkpoint)
        failed = failed or bool(problems)
        console.print(f"{checkpoint}: {'[red]broken[/]' if problems else '[green]whole[/]'}", highlight=False)
        for problem in problems:
            console.print(f"  {problem}", markup=False, highlight=False)
    if failed:
        raise typer.Exit(1)


@app.command()
def consolidate(
    run_dir: Annotated[Path, typer.Argument(help="The run directory, on shared storage.")],
    local_dir: Annotated[
        Path | None, typer.Option(help="checkpoint.local_dir of the run; default: from its config.yaml.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="One host per line.")] = None,
    hosts: Annotated[str | None, typer.Option(help="Hosts, separated by commas. Default: this machine.")] = None,
    step: Annotated[int | None, typer.Option(help="Default: the newest complete one.")] = None,
    ssh: Annotated[str, typer.Option(help="ssh command.")] = "ssh",
    keep_local: Annotated[bool, typer.Option(help="Keep the copies on the nodes.")] = False,
) -> None:
    """Collect a checkpoint from the nodes' own disks into the run, verify it there, and remove the nodes' copies.

    For what a run that died has not copied itself. It may be interrupted at any moment and run again: files that have
    arrived are not fetched twice, and nothing is removed before the checkpoint has been read back.

    Example:

        glmforge checkpoint consolidate runs/glm --hostfile hosts.txt --ssh "ssh -F cluster.conf"
    """
    from glmforge.checkpoint.node_local.consolidate import consolidate as collect
    from glmforge.checkpoint.node_local.parts_of_ranks import local_root
    from glmforge.checkpoint.node_local.transfer import Transfers, make_host
    from glmforge.observe.run import RunDirectory
    from glmforge.observe.units import format_bytes, format_duration
    from glmforge.runtime.hostfile import parse_hosts, read_hostfile
    from glmforge.runtime.ssh import Ssh

    if hostfile is not None and hosts is not None:
        raise typer.BadParameter("pass either --hostfile or --hosts, not both")
    names = read_hostfile(hostfile) if hostfile else parse_hosts(hosts) if hosts is not None else ["localhost"]
    name, local_dir = _name_and_local_dir(run_dir, local_dir)
    transfers, how = Transfers(), Ssh.of_command(ssh)
    with interruptible("complete files are kept; run it again to resume"), progress_bar(binary=True) as progress:
        tasks = {name: progress.add_task(name, total=None) for name in names}
        done = collect(
            RunDirectory(run_dir).checkpoints,
            local_root(local_dir, name).absolute(),
            [make_host(name, transfers, how) for name in names],
            transfers,
            step=step,
            keep_local=keep_local,
            report=lambda host, now, total: progress.update(tasks[host], completed=now, total=total),
        )
    if done is None:
        typer.echo(
            f"{RunDirectory(run_dir).checkpoints} already has a newer checkpoint; use --step to collect an older one"
        )
        return
    removed = f"removed from {', '.join(done.removed_from)}" if done.removed_from else "local copies kept"
    typer.echo(
        f"{done.path}: {done.num_files} files, {format_bytes(done.num_bytes)}, whole; "
        f"{format_bytes(done.fetched_bytes)} fetched in {format_duration(done.seconds)}; {removed}"
    )


@app.command("reset-optimizer")
def reset_optimizer(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a run (its newest complete checkpoint).")],
    out: Annotated[Path, typer.Argument(help="The run directory for the new checkpoint.")],
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration of the run that will continue from it; default: the checkpoint's."),
    ] = None,
    position: Annotated[
        Position, typer.Option(help="keep: continue at the same step and sample; zero: start a new run.")
    ] = Position.keep,
) -> None:
    """Write a checkpoint with the same weights and a fresh optimizer: for another optimizer, or for a new run.

    The old checkpoint is not touched. The weights are read one file's worth at a time.

    Example:

        glmforge checkpoint reset-optimizer runs/muon runs/adamw --config adamw.yaml
    """
    from glmforge.checkpoint.reset import reset_optimizer as reset
    from glmforge.config.load import load_config

    run = load_config(config) if config is not None else None
    with interruptible("nothing was written"), progress_bar() as progress:
        task = progress.add_task("tensors", total=None)
        path, notes = reset(
            source,
            out,
            config=run,
            position=position.value,
            advance=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for note in notes:
        typer.echo(note)
    typer.echo(f"{path}: weights of {source}, fresh optimizer")


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="A checkpoint.")],
    b: Annotated[Path, typer.Argument(help="The other checkpoint.")],
    top: Annotated[int, typer.Option(min=0, help="Number of most different tensors to show.")] = 10,
    only: Annotated[str, typer.Option(help="Only compare tensors with this name prefix, such as 'model.'")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show in what two checkpoints differ: tensors, configuration, position.

    Exits with 0 if they are equal and 1 if not, like diff. Equal are tensors of the same bits at the same position, in
    configurations that mean the same; layout, places, reporting and the time of saving do not count.

    Example:

        glmforge checkpoint diff runs/a/checkpoints/step-00000200 runs/b/checkpoints/step-00000200 --only model.
    """
    from glmforge.checkpoint.diff import compare_checkpoints

    with progress_bar(shown=not as_json) as progress:
        task = progress.add_task("tensors", total=None)
        found = compare_checkpoints(
            a, b, prefix=only, advance=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        _show_difference(found, top)
    raise typer.Exit(0 if found.is_equal else 1)


def _show_difference(found: "CheckpointDifference", top: int) -> None:
    console = Console(soft_wrap=True, highlight=False)
    lines = [f"only in a: {name}" for name in found.only_in_a] + [f"only in b: {name}" for name in found.only_in_b]
    lines += [*found.misfits, *map(str, found.config), *map(str, found.meta)]
    for line in lines:
        console.print(line, markup=False)
    if found.modules:
        rows = table("module", "tensors that differ", "max |a-b|", "relative", in_words=("module",))
        for module in found.modules:
            counts = f"{module.num_different} of {module.num_tensors}"
            rows.add_row(module.name, counts, f"{module.max_abs:.3g}", f"{module.relative:.3g}")
        print_table("", rows, console)
    if found.tensors[:top]:
        rows = table("tensor", "max |a-b|", "relative", in_words=("tensor",))
        for tensor in found.tensors[:top]:
            rows.add_row(tensor.name, f"{tensor.max_abs:.3g}", f"{tensor.relative:.3g}")
        print_table("", rows, console)
    verdict = "equal" if found.is_equal else "different"
    console.print(f"{verdict}: {found.num_equal:,} tensors bit-identical, {len(found.tensors):,} different")


def _name_and_local_dir(run_dir: Path, local_dir: Path | None) -> tuple[str, Path]:
    from glmforge.config.load import load_config
    from glmforge.errors import CheckpointError

    config = load_config(run_dir) if (run_dir / "config.yaml").is_file() else None
    local_dir = local_dir or (config.checkpoint.local_dir if config else None)
    if local_dir is None:
        raise CheckpointError(f"{run_dir}: its config.yaml sets no checkpoint.local_dir; pass --local-dir")
    return config.name if config else run_dir.absolute().name, local_dir
