"""Tables as the views of `glmforge plan` print them."""

from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table

_GIB = 2**30
_IN_WORDS = (
    "",
    "axis",
    "ranks that",
    "holds",
    "phase",
    "model",
    "part",
    "from",
    "setting",
    "figure",
    "layout",
    "source",
    "finding",
)


def table(*columns: str, in_words: Collection[str] = ()) -> Table:
    """Words to the left, numbers to the right. `in_words` are columns of words besides the usual ones."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        words = name in _IN_WORDS or name in in_words
        table.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return table


def print_table(title: str, rows: Table, console: Console) -> None:
    """With its title above it."""
    console.print(f"[italic]{title}[/italic]", highlight=False)
    console.print(rows)


def gib(size: int) -> str:
    """Bytes as GiB."""
    return f"{size / _GIB:,.2f}"
