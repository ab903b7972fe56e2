"""`glmforge profile`: how fast a server answers; where the time and the memory of training go (`profile_run`)."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli import profile_run
from glmforge.cli.tables import print_table, table
from glmforge.errors import GlmforgeError

if TYPE_CHECKING:
    from glmforge.deploy.inference_profile import Profile

app = typer.Typer(help="Measure a run's time, memory and data, and how fast a server answers.", no_args_is_help=True)
for command in (profile_run.train, profile_run.memory, profile_run.data):
    app.command()(command)

_MOST_USERS = 4096


@app.command()
def inference(
    url: Annotated[str, typer.Argument(help="The server's URL, such as http://127.0.0.1:8000.")],
    batch_sizes: Annotated[str, typer.Option(help="Numbers of users at the same time, rising.")] = "1,4,8,16",
    prompt_words: Annotated[int, typer.Option(min=1, max=1_000_000, help="Of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=2, max=1_000_000, help="Of each answer.")] = 64,
    requests: Annotated[int, typer.Option(min=1, max=10_000, help="Of each user, one after another.")] = 4,
    model: Annotated[str | None, typer.Option(help="Its name there; default: the first that is listed.")] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="Environment variable with the key.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for an answer.")] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON, for 'glmforge profile compare'.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page (.html).")] = None,
) -> None:
    """Measure time to first token, time between tokens and tokens per second of a server, for more and more users.

    Works with any server that has OpenAI's /v1/completions: 'glmforge serve', vLLM, SGLang, llama.cpp.

    Examples:

        glmforge profile inference http://127.0.0.1:8000

        glmforge profile inference http://127.0.0.1:8000 --batch-sizes 1,8,64 --out native.json --page native.html
    """
    numbers = _numbers(batch_sizes)

    from glmforge.deploy.inference_profile import Level, Load, profile_server

    load = Load(prompt_words, output_tokens, requests, seed)
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

    def show(level: Level) -> None:
        console.print(f"{level.num_users:,} users: {level.tokens_per_second:,.1f} tokens/s", style="dim")

    found = profile_server(url, load, numbers, model=model, key=_key(api_key_env), timeout=timeout, on_level=show)
    if out is not None:
        from glmforge.observe.run import write_text

        write_text(out, json.dumps(found.as_json(), indent=1) + "\n")
    if page is not None:
        from glmforge.report.profile_page import write_profile_page

        write_profile_page([(found.model, found)], page)
    _print(found.model, found)


@app.command()
def compare(
    files: Annotated[list[Path], typer.Argument(help="What --out wrote, two to four of them.")],
    page: Annotated[Path | None, typer.Option(help="Write a page (.html).")] = None,
) -> None:
    """Show profiles beside each other: engines, scenarios, quantised models. Names are the files'.

    Example:

        glmforge profile compare native.json vllm.json --page engines.html
    """
    from glmforge.deploy.inference_profile import read_profile

    if not 2 <= len(files) <= 4:
        raise typer.BadParameter(f"{len(files)} files; pass two to four", param_hint="FILES")
    found = [(file.stem, read_profile(file)) for file in files]
    if page is not None:
        from glmforge.report.profile_page import write_profile_page

        write_profile_page(found, page)
    for name, one in found:
        _print(name, one)
    first = found[0][1]
    for name, one in found[1:]:
        if one.load != first.load:
            typer.echo(f"{name} was measured with other prompts, lengths or numbers of requests than {found[0][0]}")


def _print(name: str, profile: "Profile") -> None:
    from glmforge.report.profile_page import LEVEL_COLUMNS, level_rows, profile_words

    rows = table(*LEVEL_COLUMNS)
    for row in level_rows(profile.levels):
        rows.add_row(*row)
    print_table(f"{name} at {profile.server}", rows, Console())
    for words in profile_words(profile):
        typer.echo(f"- {words}")
    for level in profile.levels:
        for error, number in level.errors.items():
            typer.echo(f"- {level.num_users:,} users: {number:,} requests failed: {error}")


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= _MOST_USERS for word in words):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1,4,8,16", param_hint="--batch-sizes")
    numbers = [int(word) for word in words]
    if numbers != sorted(set(numbers)):
        raise typer.BadParameter(f"{text}: does not rise", param_hint="--batch-sizes")
    return numbers


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    if not (key := os.environ.get(variable, "")):
        raise GlmforgeError(f"--api-key-env: {variable} is not set; set it to the server's key")
    return key
