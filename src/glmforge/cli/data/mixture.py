"""`glmforge data mix`: how much of each shard of tokens a run takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.data.options import split_names
from glmforge.cli.tables import print_table, table
from glmforge.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

    from glmforge.data.stream.mixture_file import MixedSource


def mix(
    inputs: Annotated[str, typer.Option(metavar="A,B,...", help="Prefixes of token shards.")],
    out: Annotated[Path, typer.Option(help="Mixture file (YAML) to write, for a run's `extends`.")],
    tokenizer: Annotated[Path, typer.Option(help="Directory of the tokenizer that encoded them.")],
    ratios: Annotated[str | None, typer.Option(metavar="0.8,0.2,...", help="Weight of each; default: by size.")] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Total tokens, such as 100B; default: as many as the ratios allow.")
    ] = None,
    max_epochs: Annotated[
        str | None, typer.Option(metavar="4 or 1,4,...", help="Most epochs, one value for all or one each.")
    ] = None,
    code: Annotated[str, typer.Option(metavar="A,...", help="Sources with code, for fill-in-the-middle.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing output.")] = False,
) -> None:
    """Write a mixture of token shards by tokens, with caps on how often each is passed through.

    Example:

        glmforge data mix --inputs data/web,data/code --ratios 0.8,0.2 --max-epochs 1,4 --tokens 10B
        --tokenizer tokenizers/150k --code code --out mixture.yaml
    """
    from glmforge.data.files import refuse_unwritable
    from glmforge.data.stream.mixture_file import plan_mixture, write_mixture
    from glmforge.data.tokens.shards import TokenShard
    from glmforge.data.tokens.tokenizer import Tokenizer

    refuse_unwritable(out, force)
    prefixes, encoder = [Path(name) for name in split_names(inputs)], Tokenizer.load(tokenizer)
    if not prefixes:
        raise DataError(f"--inputs '{inputs}': no shard given; pass prefixes separated by commas")
    for prefix in prefixes:
        TokenShard(prefix).check_tokenizer(encoder)
    sources = plan_mixture(
        prefixes,
        _numbers("ratios", ratios),
        tokens=None if tokens is None else _count(tokens),
        max_epochs=_numbers("max-epochs", max_epochs),
    )
    write_mixture(sources, tokenizer, out, code=split_names(code), overwrite=force)
    print_table("", _mixture_table(sources), Console())
    Console().print(f"{out}: use it with 'extends: {out}' in a run's file", soft_wrap=True)


def _mixture_table(sources: list["MixedSource"]) -> "Table":
    from glmforge.observe.units import format_count

    total = sum(source.tokens for source in sources)
    rows = table("source", "has", "asked", "given", "tokens", "epochs", "cap")
    for source in sources:
        rows.add_row(
            source.name,
            format_count(source.num_tokens),
            f"{source.asked:.1%}",
            f"{source.tokens / total:.1%}",
            format_count(source.tokens),
            f"{source.epochs:.2f}",
            "–" if source.max_epochs is None else f"{source.max_epochs:g}",
        )
    return rows


def _numbers(option: str, text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(word) for word in split_names(text)]
    except ValueError:
        raise DataError(f"--{option} {text}: must be numbers separated by commas") from None


def _count(text: str) -> int:
    factors = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
    number, factor = (text[:-1], factors[text[-1].lower()]) if text[-1:].lower() in factors else (text, 1)
    try:
        return round(float(number.replace("_", "")) * factor)
    except (ValueError, OverflowError):
        raise DataError(f"--tokens {text}: must be a number, optionally followed by k, M, B or T") from None
