"""`glmforge export`: a run as a Hugging Face directory."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """Types that weights can be written in."""

    bf16 = "bf16"
    fp32 = "fp32"


def export(
    source: Annotated[Path, typer.Argument(help="A run, a step of it (RUN@STEP), or one of its checkpoints.")],
    out: Annotated[Path, typer.Argument(help="The directory to write.")],
    dtype: Annotated[Dtype, typer.Option(help="Dtype of the weights.")] = Dtype.bf16,
    mtp: Annotated[bool, typer.Option("--mtp/--no-mtp", help="Keep the multi-token-prediction layers.")] = True,
    duplicate_mtp_head: Annotated[
        bool, typer.Option(help="Copy embedding and head into the MTP layers, as GLM-4.5 does.")
    ] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the run's own.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite an earlier export.")] = False,
) -> None:
    """Write a run's newest checkpoint for transformers, vLLM, SGLang or llama.cpp.

    A model with a score head alone is written for sequence classification.

    Examples:

        glmforge export runs/demo runs/demo/export

        glmforge export runs/demo/checkpoints/step-00000200 out --dtype fp32 --no-mtp

        glmforge export runs/demo runs/demo/export --force
    """
    from glmforge.deploy.export import export_run

    exported = export_run(
        source,
        out,
        dtype=dtype.value,
        with_mtp=mtp,
        duplicate_mtp_head=duplicate_mtp_head,
        tokenizer_dir=tokenizer,
        overwrite=force,
    )
    typer.echo(f"{exported.checkpoint} (step {exported.step:,}) -> {exported.directory}")
