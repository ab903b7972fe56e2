"""Options that several commands of `glmforge data` have, and what they say alike."""

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from glmforge.data.documents.read import Corpus
from glmforge.observe.units import counted


class OnError(StrEnum):
    """What to do with a record that cannot be read."""

    stop = "stop"
    skip = "skip"


TextFieldOption = Annotated[str, typer.Option(help="JSON field or Parquet column that holds the text.")]
OnErrorOption = Annotated[OnError, typer.Option(help="Stop at an unreadable record, or skip it.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]


def split_names(text: str) -> list[str]:
    """The names in a list separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def print_skipped(console: Console, corpus: Corpus) -> None:
    if corpus.num_skipped:
        console.print(f"skipped {counted(corpus.num_skipped, 'unreadable record')}; first ones:")
        for problem in corpus.problems:
            console.print(f"  {problem}", soft_wrap=True, markup=False)
