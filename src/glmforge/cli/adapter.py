"""`glmforge adapter`: the adapters of a run by themselves."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="The adapters that a run trains (lora), by themselves.")


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
