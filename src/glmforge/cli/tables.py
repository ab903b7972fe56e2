"""Tables on a terminal of any width: nothing is cut off.

Columns of words wrap, columns of numbers do not, and headings break between words. Where a table is wider than the
terminal even so, each row is printed by itself, a line for each column.
"""

from collections.abc import Collection, Iterable

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

_GIB = 2**30
_WORD = 24
"""Columns of words are at least so wide, or as wide as their longest word; longer words are folded."""
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
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    return table


def print_table(title: str, rows: Table, console: Console) -> None:
    """With its title above it, if it has one; row by row where it is too wide."""
    if title:
        console.print(f"[italic]{title}[/italic]", highlight=False)
    spare = console.width - (2 * len(rows.columns) + 1) - sum(map(_least_width, rows.columns))
    if spare < 0:
        _print_blocks(rows, console)
        return
    # rich would take from columns that cannot give. Here those that need least get first, each at most its share.
    by_need = sorted(rows.columns, key=lambda column: _natural_width(column) - _least_width(column))
    for number, column in enumerate(by_need):
        least = _least_width(column)
        more = min(_natural_width(column) - least, spare // (len(by_need) - number))
        column.width, spare = least + more, spare - more
    console.print(rows, soft_wrap=False)


def print_facts(facts: Iterable[tuple[str, str]], console: Console) -> None:
    """A line for each name and what belongs to it; the terminal wraps what is too long."""
    facts = list(facts)
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        console.print(f" {name:{width}}  {value}".rstrip(), markup=False, highlight=False, soft_wrap=True)


def gib(size: int) -> str:
    """Bytes as GiB."""
    return f"{size / _GIB:,.2f}"


def _texts(column: Column) -> list[Text]:
    return [Text.from_markup(cell) if isinstance(cell, str) else Text(str(cell)) for cell in column.cells]


def _least_width(column: Column) -> int:
    """Below it, numbers would be folded, and words of usual length."""
    heading = max(map(len, str(column.header).split()), default=0)
    if column.justify == "right":
        return max([heading, *(text.cell_len for text in _texts(column))])
    longest = max((len(word) for text in _texts(column) for word in text.plain.split()), default=0)
    return max(heading, min(longest, _WORD))


def _natural_width(column: Column) -> int:
    """With every cell in one line, and headings where there is room."""
    return max([_least_width(column), len(str(column.header)), *(text.cell_len for text in _texts(column))])


def _print_blocks(rows: Table, console: Console) -> None:
    columns = [(str(column.header), _texts(column)) for column in rows.columns]
    width = max(len(heading) for heading, _ in columns)
    for number in range(rows.row_count):
        console.print()
        for index, (heading, cells) in enumerate(columns):
            if cells[number].plain:
                style = "bold" if index == 0 else ""
                line = Text.assemble((f"{heading:{width}}  ", "dim"), (cells[number].plain, style))
                console.print(line, highlight=False, soft_wrap=True)
    console.print()
