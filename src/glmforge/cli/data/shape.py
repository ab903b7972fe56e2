"""`glmforge data analyze|sample|augment|mix`: what a corpus holds, and what is taken of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from glmforge.cli.data.corpus import (
    IdFieldOption,
    InputsArgument,
    MetadataOption,
    OutOption,
    RedoOption,
    TextFieldOption,
    WorkersOption,
    inline_pipeline,
    run_and_tell,
)
from glmforge.errors import DataError

if TYPE_CHECKING:
    from glmforge.data.stream.mixture_file import MixedSource

_DEFAULT_SHARE = 0.1  # of the documents get an altered copy

SeedOption = Annotated[int, typer.Option(min=0, help="Another seed, another choice.")]

_RULES: list[Any] = ["normalise", "language", "gopher_quality", "gopher_repetition", "c4", "fineweb", "quality"]


def analyze(
    inputs: InputsArgument,
    out: OutOption,
    text_field: TextFieldOption = "text",
    id_field: IdFieldOption = None,
    metadata: MetadataOption = "",
    workers: WorkersOption = 0,
    redo: RedoOption = False,
) -> None:
    """Tell what a corpus holds: lengths, languages, scores, and how much each quality rule would remove.

    Nothing is removed: documents/ holds the corpus as it came, with languages and scores added.

    Example:

        glmforge data analyze crawl/ books.jsonl.zst --out analysis
    """
    run_and_tell(
        inline_pipeline(inputs, out, [{"analyze": _RULES}], fields=(text_field, id_field, metadata), workers=workers),
        redo=redo,
    )


def sample(
    inputs: InputsArgument,
    out: OutOption,
    documents: Annotated[int | None, typer.Option(min=1, help="Number of documents, of each group.")] = None,
    fraction: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the documents instead of a number.")
    ] = None,
    by: Annotated[str, typer.Option(help="Groups: all, source, or language (which the documents must know).")] = "all",
    seed: SeedOption = 0,
    text_field: TextFieldOption = "text",
    id_field: IdFieldOption = None,
    metadata: MetadataOption = "",
    workers: WorkersOption = 0,
    redo: RedoOption = False,
) -> None:
    """Take a sample of documents: the same one however often, and on however many workers.

    Example:

        glmforge data sample crawl/ --documents 10000 --out sample
    """
    options = {"documents": documents, "fraction": fraction, "by": by}
    stages = [{"sample": {name: value for name, value in options.items() if value is not None}}]
    run_and_tell(
        inline_pipeline(
            inputs,
            out,
            stages,
            fields=(text_field, id_field, metadata),
            workers=workers,
            seed=seed,
            options={f"sample.{name}": f"--{name}" for name in options},
        ),
        redo=redo,
    )


def augment(
    inputs: InputsArgument,
    out: OutOption,
    operation: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=SHARE]",
            help="metadata (put in front), typing (a slip in 1 of 100 letters), case (changed) or lines (broken anew), "
            f"and the share of documents that get such a copy, {_DEFAULT_SHARE:g} if not given. Repeatable.",
        ),
    ],
    seed: SeedOption = 0,
    text_field: TextFieldOption = "text",
    id_field: IdFieldOption = None,
    metadata: MetadataOption = "",
    workers: WorkersOption = 0,
    redo: RedoOption = False,
) -> None:
    """Add altered copies of a share of the documents beside the originals.

    Example:

        glmforge data augment clean/documents --operation typing=0.2 --operation case --out augmented
    """
    stages, options = [{"augment": {"operations": _operations(operation)}}], {"augment.operations": "--operation"}
    run_and_tell(
        inline_pipeline(
            inputs, out, stages, fields=(text_field, id_field, metadata), workers=workers, seed=seed, options=options
        ),
        redo=redo,
    )


def mix(
    inputs: Annotated[str, typer.Option(metavar="A,B,...", help="Prefixes of token shards.")],
    out: Annotated[Path, typer.Option(help="Mixture file (YAML) to write, for a run's `extends`.")],
    tokenizer: Annotated[Path, typer.Option(help="Directory of the tokenizer that encoded them.")],
    ratios: Annotated[
        str | None, typer.Option(metavar="0.8,0.2,...", help="Share of each; by their sizes if not given.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens of the mixture, such as 100B; all that the ratios allow if not given.")
    ] = None,
    max_epochs: Annotated[
        str | None, typer.Option(metavar="4 or 1,4,...", help="Caps on epochs, one for all or one for each.")
    ] = None,
    code: Annotated[str, typer.Option(metavar="A,...", help="Sources that are code, for fill-in-the-middle.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write a mixture of token shards by tokens, with caps on how often each is gone through.

    Example:

        glmforge data mix --inputs data/web,data/code --ratios 0.8,0.2 --max-epochs 1,4 --tokens 10B
        --tokenizer tokenizers/150k --code code --out mixture.yaml
    """
    from glmforge.data.files import refuse_unwritable
    from glmforge.data.stream.mixture_file import plan_mixture, write_mixture
    from glmforge.data.tokens.shards import TokenShard
    from glmforge.data.tokens.tokenizer import Tokenizer

    refuse_unwritable(out, force)
    prefixes, encoder = [Path(name) for name in _words(inputs)], Tokenizer.load(tokenizer)
    if not prefixes:
        raise DataError(f"--inputs '{inputs}': names no shard: give prefixes with commas between them")
    for prefix in prefixes:
        TokenShard(prefix).check_tokenizer(encoder)
    sources = plan_mixture(
        prefixes,
        _numbers("ratios", ratios),
        tokens=None if tokens is None else _count(tokens),
        max_epochs=_numbers("max-epochs", max_epochs),
    )
    write_mixture(sources, tokenizer, out, code=_words(code), overwrite=force)
    Console().print(_mixture_table(sources))
    Console().print(f"{out}: use it with 'extends: {out}' in a run's file", soft_wrap=True)


def _mixture_table(sources: list["MixedSource"]) -> Table:
    from glmforge.observe.units import format_count

    total = sum(source.tokens for source in sources)
    table = Table("source", box=None)
    for name in ("has", "asked", "given", "tokens", "epochs", "cap"):
        table.add_column(name, justify="right")
    for source in sources:
        table.add_row(
            source.name,
            format_count(source.num_tokens),
            f"{source.asked:.1%}",
            f"{source.tokens / total:.1%}",
            format_count(source.tokens),
            f"{source.epochs:.2f}",
            "–" if source.max_epochs is None else f"{source.max_epochs:g}",
        )
    return table


def _operations(words: list[str]) -> dict[str, float]:
    """Operation -> share of the documents."""
    shares: dict[str, float] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            share = float(text) if equals else _DEFAULT_SHARE
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise DataError(f"--operation {word}: must be NAME=SHARE with a share above 0 and up to 1: {name}=0.1")
        if name in shares:
            raise DataError(f"--operation {word}: {name} has a share already: name each operation once")
        shares[name] = share
    return shares


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(word) for word in _words(text)]
    except ValueError:
        raise DataError(f"--{option} {text}: must be numbers with commas between them") from None


def _count(text: str) -> int:
    factors = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
    number, factor = (text[:-1], factors[text[-1].lower()]) if text[-1:].lower() in factors else (text, 1)
    try:
        return round(float(number.replace("_", "")) * factor)
    except (ValueError, OverflowError):
        raise DataError(f"--tokens {text}: must be a number, with k, M, B or T behind it if you like") from None
