"""`glmforge demo`: from raw text to a model that talks, on this machine."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    minutes: Annotated[
        float,
        typer.Option(min=1.0, help="Approximate duration on two cores; more time trains a better model."),
    ] = 6.0,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Your own text: a file or a directory. Default: Python's standard library."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output directory; replaces an earlier demo there.")] = Path("runs/demo"),
    overrides: Annotated[list[str] | None, typer.Argument(help="Pre-training overrides: key.sub=value.")] = None,
    sft: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Fine-tuning override: key.sub=value. Repeatable."),
    ] = None,
) -> None:
    """Train a small GLM-4.6-shaped model on this machine and talk to it.

    The whole life of a model: corpus, tokenizer, shards, pre-training with a crash and a resume, fine-tuning on
    conversations, evaluation, export, report.

    Examples:

        glmforge demo

        glmforge demo --minutes 15 --corpus ~/my_project --out runs/mine

        glmforge demo model.n_routed_experts=32 --sft sft.mean=conversations

    Ctrl-C while it trains saves what has been trained, and says how to go on with it.
    """
    from glmforge.runtime.interrupts import ends_at_once

    with ends_at_once("interrupted before the demo began"):
        from glmforge.recipes.demo import Demo, DemoOptions

    Demo(DemoOptions(out, corpus, minutes, tuple(overrides or ()), tuple(sft or ()))).run()
