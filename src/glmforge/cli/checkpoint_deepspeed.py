"""`glmforge checkpoint from-deepspeed` and `to-deepspeed`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.export import Dtype
from glmforge.cli.interruptible import progress_bar


def from_deepspeed(
    source: Annotated[Path, typer.Argument(help="A directory of DeepSpeed's save_checkpoint, or one step in it.")],
    out: Annotated[Path, typer.Argument(help="With --config the run directory, with --hf a new directory.")],
    config: Annotated[Path | None, typer.Option(help="File of the run that goes on from it.")] = None,
    hf: Annotated[
        Path | None, typer.Option(help="Directory with config.json of the trained model: write a Hugging Face model.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Dtype of the Hugging Face model.")] = Dtype.bf16,
) -> None:
    """Read a DeepSpeed checkpoint: ZeRO stages 1, 2, 3, or universal. Nothing in it is unpickled.

    With --config, weights, Adam's moments and the position become a checkpoint that the run resumes from; the model is
    a Glm4Moe. With --hf, the fp32 weights of any model become a Hugging Face directory.

    Examples:

        glmforge checkpoint from-deepspeed outputs runs/glm --config glm.yaml

        glmforge checkpoint from-deepspeed outputs/global_step500 llama-500 --hf models/llama
    """
    from glmforge.checkpoint.convert.deepspeed import deepspeed_to_hf, import_deepspeed
    from glmforge.config.load import load_config
    from glmforge.deploy.export import DTYPES

    if (config is None) == (hf is None):
        raise typer.BadParameter("pass either --config or --hf")
    if config is not None:
        with _advance("tensors") as advance:
            out = import_deepspeed(source, load_config(config), out, advance)
    elif hf is not None:
        deepspeed_to_hf(source, hf, out, DTYPES[dtype.value])
    typer.echo(f"{source} -> {out}")


def to_deepspeed(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a run (its newest complete checkpoint).")],
    out: Annotated[Path, typer.Argument(help="The directory for DeepSpeed's load_checkpoint.")],
) -> None:
    """Write a checkpoint in DeepSpeed's universal format: weights, Adam's moments, position.

    It loads under ZeRO 1, 2 and 3 on any number of ranks, with "checkpoint": {"load_universal": true} in DeepSpeed's
    JSON and engine.load_checkpoint(OUT).

    Example:

        glmforge checkpoint to-deepspeed runs/glm outputs
    """
    from glmforge.checkpoint.convert.deepspeed import export_deepspeed

    with _advance("parameters") as advance:
        path = export_deepspeed(source, out, advance)
    typer.echo(f"{source} -> {path}")


@contextmanager
def _advance(what: str) -> Iterator[Callable[[int, int], None]]:
    with progress_bar() as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
