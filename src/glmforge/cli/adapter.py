"""`glmforge adapter`: what is in a checkpoint of adapters, and what can be made of it?

torch is imported inside the commands, so that `--help` answers at once.
"""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from glmforge.cli.checkpoint import consolidate, interruptible, progress_bar

app = typer.Typer(help="Show, collect, convert and merge adapters (LoRA).", no_args_is_help=True)

_Adapter = Annotated[Path, typer.Argument(help="A checkpoint of adapters, or a run: its newest whole one; RUN@STEP.")]


@app.command()
def show(path: _Adapter) -> None:
    """Show what a checkpoint of adapters holds: base, mode, tensors with shapes and counts, files of the ranks.

    'glmforge checkpoint show' and 'verify' understand it too.

    Example:

        glmforge adapter show runs/lora
    """
    from glmforge.checkpoint.find import find_checkpoint
    from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX, read_description

    checkpoint = find_checkpoint(path)
    description = read_description(checkpoint)
    settings, base = description.settings, description.base
    console = Console(soft_wrap=True)
    facts = Table(show_header=False, box=None)
    for name, value in (
        ("checkpoint", str(checkpoint)),
        ("step", f"{description.step:,}"),
        ("mode", description.mode),
        ("rank, alpha", f"{settings.rank}, {settings.alpha:g}{', rsLoRA' if settings.rslora else ''}"),
        ("DoRA", "yes" if settings.dora else "no"),
        ("base", f"{base.source}, fingerprint {base.fingerprint[:16]}" if base else "not noted"),
        ("shards", f"{description.num_shards} (ranks {', '.join(str(s.rank) for s in description.shards)})"),
    ):
        facts.add_row(name, value)
    table, total, num_tensors = _table_of(
        {n.removeprefix(PARAMETER_PREFIX): t.shape for n, t in description.tensors.items() if n.startswith("model.")}
    )
    console.print(facts, table)
    console.print(f"{total:,} parameters in {num_tensors:,} tensors", highlight=False)


@app.command()
def gather(
    run_dir: Annotated[Path, typer.Argument(help="The run, where the checkpoint is to lie.")],
    local_dir: Annotated[
        Path | None, typer.Option(help="checkpoint.local_dir of the run; None: as its config.yaml says.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="One host per line.")] = None,
    hosts: Annotated[str | None, typer.Option(help="Hosts, separated by commas. None at all: this machine.")] = None,
    step: Annotated[int | None, typer.Option(help="None: the newest that is whole.")] = None,
    ssh: Annotated[str, typer.Option(help="How to call ssh.")] = "ssh",
    keep_local: Annotated[bool, typer.Option(help="Leave the nodes' copies where they are.")] = False,
) -> None:
    """Collect a checkpoint of adapters from the nodes' own disks: what 'glmforge checkpoint consolidate' does.

    Where each node has a copy of the model, any one node is enough: the others may be gone.

    Example:

        glmforge adapter gather runs/lora --hosts node0,node1
    """
    consolidate(run_dir, local_dir, hostfile, hosts, step, ssh, keep_local)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint of adapters, a run or RUN@STEP; or PEFT's directory.")],
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    base: Annotated[Path | None, typer.Option(help="Of a PEFT adapter: the weights that it belongs to.")] = None,
) -> None:
    """Write one PEFT adapter (adapter_model.safetensors, adapter_config.json) of a checkpoint; or the other way.

    A directory that PEFT wrote becomes OUT/step-00000000, which a run can start from.

    Example:

        glmforge adapter convert runs/lora adapter
        glmforge adapter convert downloaded-adapter adapters --base GLM-4.5-Air
    """
    from glmforge.checkpoint.adapter.from_peft import import_peft
    from glmforge.checkpoint.adapter.peft import ADAPTER_FILE, export_peft
    from glmforge.checkpoint.find import find_checkpoint

    if (source / ADAPTER_FILE).is_file():
        typer.echo(f"{import_peft(source, out, base=base)}: the adapter of {source}, weights only")
        return
    checkpoint = find_checkpoint(source)
    export_peft(checkpoint, out)
    typer.echo(f"{out}: the adapter of {checkpoint}, for peft.PeftModel.from_pretrained")


@app.command()
def merge(
    adapter: _Adapter,
    base: Annotated[Path, typer.Argument(help="The Hugging Face directory that it was trained on.")],
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    other_base: Annotated[bool, typer.Option(help="Merge into other weights than it was trained on.")] = False,
) -> None:
    """Write full Hugging Face weights with the adapters in them, one tensor in memory at a time.

    Files, names and types are those of the base.

    Example:

        glmforge adapter merge runs/lora GLM-4.5-Air GLM-4.5-Air-tuned
    """
    from glmforge.checkpoint.adapter.merge import merge as merge_weights
    from glmforge.checkpoint.find import find_checkpoint

    checkpoint = find_checkpoint(adapter)
    with interruptible("nothing was written"), progress_bar() as progress:
        task = progress.add_task("files", total=None)
        merge_weights(
            checkpoint,
            base,
            out,
            check=not other_base,
            advance=lambda done, total: progress.update(task, completed=done, total=total),
        )
    typer.echo(f"{out}: {base} with the adapters of {checkpoint}")


def _table_of(shapes: dict[str, list[int]]) -> tuple[Table, int, int]:
    """One row for the tensors that differ in the layer only; all elements, and all tensors."""
    groups = Counter(
        (".".join("*" if part.isdigit() else part for part in name.split(".")), tuple(shape))
        for name, shape in shapes.items()
    )
    table = Table("tensor", "shape", "tensors", "parameters")
    for (pattern, shape), count in groups.items():
        table.add_row(pattern, " x ".join(map(str, shape)), f"{count:,}", f"{count * prod(shape):,}")
    return table, sum(map(prod, shapes.values())), len(shapes)


@app.command("export")
def export(
    source: Annotated[Path, typer.Argument(help="A run, a step of it (RUN@STEP), or one of its checkpoints.")],
    out: Annotated[Path, typer.Argument(help="The directory to write, new or empty.")],
    base: Annotated[
        str | None, typer.Option(help="What the base model is called there. Default: the run's init_from.")
    ] = None,
) -> None:
    """Write a run's adapters for PEFT: adapter_config.json, adapter_model.safetensors, the tokenizer.

    Weights with the adapters merged into them are what 'glmforge export' writes.

    Examples:

        glmforge adapter export runs/lora runs/lora/adapter

        glmforge adapter export runs/lora@200 adapter --base zai-org/GLM-4.5-Air
    """
    from glmforge.deploy.export import export_adapter

    exported = export_adapter(source, out, base=base)
    typer.echo(f"{exported.checkpoint} (step {exported.step:,}) -> {exported.directory}")
