"""`glmforge adapter`: what is in a checkpoint of adapters, and what can be made of it?

torch is imported inside the commands, so that `--help` answers at once.
"""

from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.checkpoint import consolidate
from glmforge.cli.interruptible import interruptible, progress_bar
from glmforge.cli.tables import print_facts, print_table, table

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(help="Show, collect, merge and convert adapters (LoRA).", no_args_is_help=True)

_Adapter = Annotated[
    Path, typer.Argument(help="An adapter checkpoint, a run (its newest complete checkpoint) or RUN@STEP.")
]


@app.command()
def show(path: _Adapter) -> None:
    """Show what a checkpoint of adapters holds: base, mode, tensors with shapes and counts, files of the ranks.

    A checkpoint that is incomplete, or whose files do not hold what it says, is refused. 'glmforge checkpoint show' and
    'verify' understand it too.

    Example:

        glmforge adapter show runs/lora
    """
    from glmforge.checkpoint.adapter.find import check_adapter, find_adapter
    from glmforge.checkpoint.format.sharded_adapter import PARAMETER_PREFIX

    checkpoint, description = find_adapter(path)
    check_adapter(checkpoint)
    lora, base = description.lora, description.base
    console = Console()
    facts = (
        ("checkpoint", str(checkpoint)),
        ("step", f"{description.step:,}"),
        ("mode", description.mode),
        ("rank, alpha", f"{lora.rank}, {lora.scaled_alpha:g}{', rsLoRA' if lora.rslora else ''}"),
        ("targets", ", ".join(lora.targets)),
        ("DoRA", "yes" if lora.dora else "no"),
        ("base", base.source),
        ("its fingerprint", base.fingerprint[:16]),
        ("shards", f"{description.num_shards} (ranks {', '.join(str(s.rank) for s in description.shards)})"),
    )
    rows, total, num_tensors = _table_of(
        {
            name.removeprefix(PARAMETER_PREFIX): tensor.shape
            for name, tensor in description.tensors.items()
            if name.startswith(PARAMETER_PREFIX)
        }
    )
    print_facts(facts, console)
    print_table("", rows, console)
    console.print(f"{total:,} parameters in {num_tensors:,} tensors", highlight=False)


@app.command()
def gather(
    run_dir: Annotated[Path, typer.Argument(help="The run that gets the checkpoint.")],
    local_dir: Annotated[
        Path | None, typer.Option(help="checkpoint.local_dir of the run; default: from its config.yaml.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="One host per line.")] = None,
    hosts: Annotated[str | None, typer.Option(help="Hosts, separated by commas. Default: this machine.")] = None,
    step: Annotated[int | None, typer.Option(help="Default: the newest complete one.")] = None,
    ssh: Annotated[str, typer.Option(help="ssh command.")] = "ssh",
    keep_local: Annotated[bool, typer.Option(help="Keep the copies on the nodes.")] = False,
) -> None:
    """Collect a checkpoint of adapters from the nodes' own disks: what 'glmforge checkpoint consolidate' does.

    Where each node has a copy of the model, any one node is enough: the others may be gone.

    Example:

        glmforge adapter gather runs/lora --hosts node0,node1
    """
    consolidate(run_dir, local_dir, hostfile, hosts, step, ssh, keep_local)


@app.command()
def merge(
    adapter: _Adapter,
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    full: Annotated[bool, typer.Option("--full", help="Write the full model with the adapters merged in.")] = False,
    base: Annotated[
        str | None,
        typer.Option(
            help="With --full: the Hugging Face directory of the base model; otherwise the base model that "
            "PEFT loads. Default: the recorded one."
        ),
    ] = None,
    other_base: Annotated[
        bool, typer.Option(help="Merge even if the base weights differ from those it was trained on.")
    ] = False,
) -> None:
    """Write the ranks' slices as one PEFT adapter, or with --full as Hugging Face weights.

    A PEFT adapter is adapter_model.safetensors, adapter_config.json and the tokenizer. Full weights are written with
    one tensor in memory at a time; files, names and types are those of the base.

    Examples:

        glmforge adapter merge runs/lora adapter

        glmforge adapter merge runs/lora@200 adapter --base zai-org/GLM-4.5-Air

        glmforge adapter merge runs/lora GLM-4.5-Air-tuned --full
    """
    from glmforge.checkpoint.adapter.find import find_adapter
    from glmforge.checkpoint.adapter.merge import merge as merge_weights
    from glmforge.checkpoint.adapter.to_peft import export_peft

    checkpoint, _ = find_adapter(adapter)
    if not full:
        if other_base:
            raise typer.BadParameter("needs --full", param_hint="--other-base")
        with interruptible("nothing was written"):
            export_peft(checkpoint, out, base=base)
        typer.echo(f"{out}: the adapter of {checkpoint}, for peft.PeftModel.from_pretrained")
        return
    with interruptible("nothing was written"), progress_bar() as progress:
        task = progress.add_task("files", total=None)
        used = merge_weights(
            checkpoint,
            out,
            None if base is None else Path(base),
            check=not other_base,
            advance=lambda done, total: progress.update(task, completed=done, total=total),
        )
    typer.echo(f"{out}: {used} with the adapters of {checkpoint}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A PEFT adapter directory.")],
    out: Annotated[Path, typer.Argument(help="The directory to write to.")],
    base: Annotated[Path, typer.Option(help="The Hugging Face directory of its base model.")],
) -> None:
    """Write a PEFT adapter as a checkpoint of adapters, OUT/step-00000000.

    The other commands understand it, and a run can begin with it (lora.init_from), as it can with the PEFT adapter.

    Example:

        glmforge adapter convert downloaded-adapter adapters --base GLM-4.5-Air
    """
    from glmforge.checkpoint.adapter.from_peft import import_peft

    with interruptible("nothing was written"):
        written = import_peft(source, out, base=base)
    typer.echo(f"{written}: the adapter of {source}, weights only")


def _table_of(shapes: dict[str, list[int]]) -> "tuple[Table, int, int]":
    """One row for the tensors that differ in the layer only; all elements, and all tensors."""
    groups = Counter(
        (".".join("*" if part.isdigit() else part for part in name.split(".")), tuple(shape))
        for name, shape in shapes.items()
    )
    rows = table("tensor", "shape", "tensors", "parameters", in_words=("tensor",))
    for (pattern, shape), count in groups.items():
        rows.add_row(pattern, " x ".join(map(str, shape)), f"{count:,}", f"{count * prod(shape):,}")
    return rows, sum(map(prod, shapes.values())), len(shapes)
