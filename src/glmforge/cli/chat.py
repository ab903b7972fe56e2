"""`glmforge chat`: talk to a model in the terminal."""

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from glmforge.cli.terminal import as_shown


def chat(
    model: Annotated[Path, typer.Argument(help="An export, a run, a step of it (RUN@STEP), or a checkpoint.")],
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Answer this and exit.")] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Continue the text as it is, without the chat template.")
    ] = False,
    thinking: Annotated[bool, typer.Option(help="Let the model think before it answers.")] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Longest answer, in tokens.",
            show_default="256, or half of the model's positions if those are fewer",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always picks the most likely token.")] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0, help="Sample from this share of the probability.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Instead of the model's own tokenizer.")] = None,
) -> None:
    """Talk to a model. A model that has only been pre-trained continues text best: use --complete.

    Examples:

        glmforge chat runs/demo/export

        glmforge chat runs/demo --complete -p "def main():" --temperature 0
    """
    from glmforge.deploy.chat import Conversation, continue_text, default_max_new_tokens, tokenizer_of
    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine
    from glmforge.generate.params import SamplingParams

    if prompt is not None and not (prompt if complete else prompt.strip()):
        raise typer.BadParameter("is empty: say something, or leave it out for a conversation", param_hint="--prompt")

    engine = Engine.load(model, EngineConfig(seed=secrets.randbits(62)), tokenizer=tokenizer)
    tokenizer_of(engine, model)  # a model without one is refused before the first question
    longest = max_new_tokens or default_max_new_tokens(engine)
    params = SamplingParams(max_new_tokens=longest, temperature=temperature, top_p=top_p, seed=seed)
    conversation = Conversation(engine, thinking=thinking)

    def answer(text: str) -> None:
        if complete:
            _write(text)
            continue_text(engine, text, params, _write)
        else:
            conversation.reply(text, params, _write)
        _write("\n")

    if prompt is not None:
        answer(prompt)
        return
    console = Console(stderr=True)
    console.print("An empty line or Ctrl-D ends the conversation.", style="dim")
    while line := _read_line(console):
        answer(line)


def _read_line(console: Console) -> str:
    try:
        return console.input("[bold]> [/bold]").strip()
    except EOFError:
        return ""


def _write(text: str) -> None:
    sys.stdout.write(as_shown(text))
    sys.stdout.flush()
