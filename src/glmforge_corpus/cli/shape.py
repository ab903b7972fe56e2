"""`glmforge data analyze|sample|augment`: what a corpus holds, and what is taken of it."""

from typing import Annotated, Any

import typer

from glmforge.errors import DataError
from glmforge_corpus.cli.corpus import (
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
