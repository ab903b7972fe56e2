"""`glmforge chat`: talk to a model in the terminal."""

import io
import re
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from glmforge.cli.terminal import as_shown
from glmforge.errors import GlmforgeError
from glmforge.files import escaped

_HELP = """/help   this list
/exit   end the conversation; so do exit, quit, Ctrl-D, and Ctrl-C at the prompt
Ctrl-C  while the model answers ends the answer
Pasted lines are one message."""
_EXITS = ("/exit", "/quit", "exit", "quit")


def chat(
    model: Annotated[Path, typer.Argument(help="An export, a run, a step of it (RUN@STEP), or a checkpoint.")],
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Answer this and exit.")] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Continue the text as it is, without the chat template.")
    ] = False,
    thinking: Annotated[bool, typer.Option(help="Enable thinking (reasoning before the answer).")] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most tokens to generate.",
            show_default="256, or half of max_position_embeddings if that is less",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy decoding.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Nucleus sampling: total probability of the tokens to sample from.")
    ] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same answer.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the model's own.")] = None,
) -> None:
    """Talk to a model. A model that has only been pre-trained continues text best: use --complete.

    Ctrl-C ends an answer, and at the prompt the conversation; /help lists the commands. If stdin is not a terminal,
    each line is a message.

    Examples:

        glmforge chat runs/demo/export

        glmforge chat runs/demo --complete -p "def main():" --temperature 0
    """
    from glmforge.deploy.chat import Conversation, continue_text, default_max_new_tokens, tokenizer_of
    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine
    from glmforge.generate.params import SamplingParams

    if prompt is not None and not (prompt if complete else prompt.strip()):
        raise typer.BadParameter("is empty; give a prompt, or omit it to start a conversation", param_hint="--prompt")

    engine = Engine.load(model, EngineConfig(seed=secrets.randbits(62)), tokenizer=tokenizer)
    tokenizer_of(engine, model)  # a model without one is refused before the first question
    longest = max_new_tokens or default_max_new_tokens(engine)
    params = SamplingParams(max_new_tokens=longest, temperature=temperature, top_p=top_p, seed=seed)
    conversation = Conversation(engine, thinking=thinking)

    def answer(text: str, stopped: Callable[[], bool] = lambda: False) -> None:
        if complete:
            _write(text)
            continue_text(engine, text, params, _write, stopped)
        else:
            conversation.reply(text, params, _write, stopped)
        _write("\n")

    if prompt is not None:
        answer(prompt)
        return
    console = Console(stderr=True, highlight=False)
    console.print("/help lists the commands, Ctrl-D ends the conversation.", style="dim")
    for text in _messages(console):
        with _interrupted() as stopped:
            try:
                answer(text, stopped)
            except GlmforgeError as error:  # such as a message that is too long: another one may do
                if not sys.stdin.isatty():
                    raise
                typer.echo(f"glmforge: {escaped(str(error))}", err=True)


def _messages(console: Console) -> Iterator[str]:
    """What the user says to the model, until the end."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # refused with a word, as in an argument
    _edit_lines()
    while True:
        try:
            text = _read(console).strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if text in _EXITS:
            return
        if text == "/help":
            console.print(_HELP, markup=False)
        elif re.fullmatch(r"/\w*", text):
            console.print(f"unknown command '{text}'; /help lists the commands", markup=False)
        elif text:
            yield text


def _edit_lines() -> None:
    """Have `input` edit lines, and take pasted ones together (GNU readline from 8.0 on; libedit cannot)."""
    with suppress(ImportError):
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")


def _read(console: Console) -> str:
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input("> ")
    return console.input("> " if sys.stdin.isatty() else "")


@contextmanager
def _interrupted() -> Iterator[Callable[[], bool]]:
    """Whether there was a Ctrl-C since; a second one interrupts at once."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _write(text: str) -> None:
    sys.stdout.write(as_shown(text))
    sys.stdout.flush()
