"""`glmforge checkpoint from-megatron` and `to-megatron`."""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.export import Dtype


def from_megatron(
    source: Annotated[Path, typer.Argument(help="What Megatron's --save named, or one iter_... directory in it.")],
    out: Annotated[Path, typer.Argument(help="The Hugging Face directory to write.")],
    config: Annotated[Path, typer.Option(help="The model: preset, YAML, or directory with a GLM's or Llama's config.")],
    dtype: Annotated[Dtype, typer.Option(help="Dtype of the weights.")] = Dtype.bf16,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory to add.")] = None,
) -> None:
    """Write a megatron-core checkpoint's weights (torch_dist; no optimizer) for Hugging Face: a GLM or dense Llama.

    Example:

        glmforge checkpoint from-megatron megatron/glm glm-hf --config glm45_air_106b --tokenizer tokenizer
    """
    from glmforge.deploy.megatron import import_megatron

    typer.echo(f"{import_megatron(source, out, config, dtype=dtype.value, tokenizer_dir=tokenizer)} -> {out}")


def to_megatron(
    source: Annotated[Path, typer.Argument(help="A run, RUN@STEP, a checkpoint, a Hugging Face GLM or Llama.")],
    out: Annotated[Path, typer.Argument(help="The directory to write, for Megatron's --load.")],
    dtype: Annotated[Dtype, typer.Option(help="Dtype of the weights.")] = Dtype.bf16,
    vocab_multiple: Annotated[int, typer.Option(min=1, help="Pad the vocabulary to a multiple of this.")] = 128,
) -> None:
    """Write a model as a megatron-core checkpoint (torch_dist) for any tp, pp and ep.

    Load it with --load OUT --finetune --no-load-optim --no-load-rng --dist-ckpt-strictness log_unexpected.

    Example:

        glmforge checkpoint to-megatron runs/glm megatron/glm
    """
    from glmforge.deploy.megatron import write_for_megatron

    typer.echo(f"{write_for_megatron(source, out, dtype=dtype.value, vocab_multiple=vocab_multiple)} -> {out}")
