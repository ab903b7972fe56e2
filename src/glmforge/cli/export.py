"""`glmforge export`: a trained model as a Hugging Face directory, or as one GGUF file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """Types that safetensors are written in."""

    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


class Format(StrEnum):
    """What is written."""

    hf = "hf"
    gguf = "gguf"


class GgufType(StrEnum):
    """Types that a GGUF file is written in."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q8_0 = "q8_0"


def export(
    source: Annotated[
        Path, typer.Argument(help="A run, a step of it (RUN@STEP), a checkpoint, or a Hugging Face directory.")
    ],
    out: Annotated[Path, typer.Argument(help="The directory to write; with --format gguf the file.")],
    format_: Annotated[Format, typer.Option("--format", help="A Hugging Face directory, or a GGUF file.")] = Format.hf,
    dtype: Annotated[Dtype, typer.Option(help="Dtype of a Hugging Face directory's weights.")] = Dtype.bf16,
    gguf_type: Annotated[GgufType | None, typer.Option("--type", help="Type of a GGUF file's weights.")] = None,
    mtp: Annotated[bool, typer.Option("--mtp/--no-mtp", help="Keep the multi-token-prediction layers.")] = True,
    duplicate_mtp_head: Annotated[
        bool, typer.Option(help="Copy embedding and head into the MTP layers, as GLM-4.5 does.")
    ] = False,
    sharded: Annotated[
        bool, typer.Option("--sharded", help="Under torchrun: each rank reads and writes its share of the model.")
    ] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the source's own.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite an earlier export.")] = False,
) -> None:
    """Write a model for transformers, vLLM, SGLang or llama.cpp.

    Of a run its newest checkpoint is written, with adapters merged. A model with a score head alone is written for
    sequence classification. What is written is read again and compared before it gets its name.

    Examples:

        glmforge export runs/demo runs/demo/export

        glmforge export runs/demo/checkpoints/step-00000200 out --dtype fp32 --no-mtp

        glmforge export runs/demo demo.gguf --format gguf --type q8_0

        torchrun --nproc-per-node 8 -m glmforge export runs/glm out --sharded
    """
    if format_ == Format.gguf:
        for given, option in ((sharded, "--sharded"), (duplicate_mtp_head, "--duplicate-mtp-head")):
            if given:
                raise typer.BadParameter("is for Hugging Face directories", param_hint=option)
        _export_gguf(source, out, gguf_type or GgufType.bf16, mtp, tokenizer, force)
        return
    if gguf_type is not None:
        raise typer.BadParameter("needs --format gguf; for a Hugging Face directory pass --dtype", param_hint="--type")

    from glmforge.deploy.export import export_run
    from glmforge.deploy.export_sharded import export_run_sharded

    exported = (export_run_sharded if sharded else export_run)(
        source,
        out,
        dtype=dtype.value,
        with_mtp=mtp,
        duplicate_mtp_head=duplicate_mtp_head,
        tokenizer_dir=tokenizer,
        overwrite=force,
    )
    if exported is not None:
        typer.echo(f"{_named(exported.checkpoint, exported.step)} -> {exported.directory}")


def _export_gguf(source: Path, out: Path, gguf_type: GgufType, mtp: bool, tokenizer: Path | None, force: bool) -> None:
    from glmforge.deploy.export import open_source
    from glmforge.deploy.gguf import export_gguf

    opened = open_source(source)
    in_f16 = export_gguf(opened, out, type_name=gguf_type.value, with_mtp=mtp, tokenizer_dir=tokenizer, overwrite=force)
    typer.echo(f"{_named(opened.path, opened.step)} -> {out}")
    if in_f16:
        typer.echo(f"F16 instead of Q8_0, whose rows are multiples of 32: {', '.join(in_f16)}")


def _named(path: Path, step: int | None) -> str:
    return str(path) if step is None else f"{path} (step {step:,})"
