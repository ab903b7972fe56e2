"""`glmforge init`: a configuration that fits one's own tokenizer, text and machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def init(
    file: Annotated[Path, typer.Argument(help="YAML file to write; also names the run.")],
    tokenizer: Annotated[Path, typer.Option(help="Tokenizer directory, from 'glmforge data tokenizer'.")],
    data: Annotated[
        list[Path],
        typer.Option(metavar="PREFIX", help="Token shard, from 'glmforge data tokenize'. Repeatable."),
    ],
    held_out: Annotated[
        list[Path] | None,
        typer.Option(metavar="PREFIX", help="Held-out shard.", show_default="PREFIX-held-out, if it exists"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Preset to start from.", show_default="small_1b on a GPU, demo elsewhere"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Training time on this machine; measures a step.")
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option(min=1, help="Training tokens.", show_default="4 epochs, or 20 tokens per parameter"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing output.")] = False,
) -> None:
    """Write the configuration of a run that fits a tokenizer, token shards and this machine.

    The file is complete and says why it is so: read it, change it, then train it.

    Examples:

        glmforge init my_run.yaml --tokenizer data/tokenizer --data data/train --minutes 10

        glmforge init mixed.yaml --tokenizer data/tokenizer --data data/books --data data/code --model small_1b
    """
    from glmforge.data.files import refuse_unwritable, write_whole
    from glmforge.errors import ConfigError
    from glmforge.observe.units import format_count, format_duration
    from glmforge.recipes.new_run import NewRunOptions, new_run

    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{file}: must end in .yaml")
    refuse_unwritable(file, force)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if minutes is not None:
        console.print("measuring a training step ...", style="dim")
    made = new_run(NewRunOptions(file, tokenizer, data, held_out, model, minutes, tokens))
    write_whole(file, made.text.encode())
    steps, total = made.config.num_steps, format_count(made.config.num_tokens)
    console.print(f"{file}: {steps:,} steps, {total} tokens, {made.num_epochs:.2g} times through the text")
    if made.step_seconds is not None:
        needed = made.step_seconds * steps
        console.print(f"about {format_duration(needed)} on this machine, {made.step_seconds:.2f} s a step")
        if minutes is not None and needed < 45 * minutes:
            console.print("more time would not help, because the text is small; more text makes a better model")
    if not made.held_out:
        console.print("no held-out text: 'glmforge data tokenize --held-out 0.01' sets some aside to evaluate on")
    run = made.config.output_dir
    console.print(f"Next: glmforge train {file}    glmforge chat {run} --complete")
