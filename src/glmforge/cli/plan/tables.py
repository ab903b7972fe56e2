"""Tables as the views of `glmforge plan` print them."""

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


def table(*columns: str) -> Table:
    """Words to the left, numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        in_words = name in _IN_WORDS
        table.add_column(name, justify="left" if in_words else "right", no_wrap=not in_words, overflow="fold")
    return table


def print_table(title: str, rows: Table, console: Console) -> None:
    """With its title above it."""
    console.print(f"[italic]{title}[/italic]", highlight=False)
    console.print(rows)


def gib(size: int) -> str:
    """Bytes as GiB."""
    return f"{size / _GIB:,.2f}"
