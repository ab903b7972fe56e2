"""`glmforge data analyze|sample|augment`: statistics of a corpus, samples of it, altered copies."""

from typing import Annotated, Any

import typer

from glmforge.errors import DataError
from glmforge_corpus.cli.pipeline_command import Stages, pipeline_command

_DEFAULT_SHARE = 0.1  # of the documents get an altered copy

SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the random choice of documents.")]

_RULES: list[Any] = ["normalise", "language", "gopher_quality", "gopher_repetition", "c4", "fineweb", "quality"]


@pipeline_command
def analyze() -> Stages:
    """Report what a corpus contains: lengths, languages, scores, and how much each quality rule would remove.

    Nothing is removed: documents/ holds the whole corpus, with languages and scores added.

    Example:

        glmforge data analyze crawl/ books.jsonl.zst --out analysis
    """
    return Stages([{"analyze": _RULES}])


@pipeline_command
def sample(
    documents: Annotated[int | None, typer.Option(min=1, help="Number of documents per group.")] = None,
    fraction: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the documents, instead of a number.")
    ] = None,
    by: Annotated[str, typer.Option(help="Groups: all, source, or language (which documents must have).")] = "all",
    seed: SeedOption = 0,
) -> Stages:
    """Take a random sample of documents, the same on every run and for any number of workers.

    Example:

        glmforge data sample crawl/ --documents 10000 --out sample
    """
    options = {"documents": documents, "fraction": fraction, "by": by}
    stage = {"sample": {name: value for name, value in options.items() if value is not None}}
    return Stages([stage], {f"sample.{name}": f"--{name}" for name in options}, seed=seed)


@pipeline_command
def augment(
    operation: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=SHARE]",
            help="metadata (put in front of the text), typing (errors in 1 of 100 letters), case (changed) or lines "
            f"(broken differently), and the share of documents that get such a copy, by default {_DEFAULT_SHARE:g}. "
            "Repeatable.",
        ),
    ],
    seed: SeedOption = 0,
) -> Stages:
    """Add altered copies of a share of the documents.

    Example:

        glmforge data augment clean/documents --operation typing=0.2 --operation case --out augmented
    """
    return Stages(
        [{"augment": {"operations": _operations(operation)}}], {"augment.operations": "--operation"}, seed=seed
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
