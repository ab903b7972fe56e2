"""What every page is made of: templates that need nothing else, headline numbers, tables."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jinja2
import markupsafe

from glmforge.errors import ConfigError


class Tile(NamedTuple):
    """A headline number."""

    label: str
    value: str
    unit: str = ""


class Column(NamedTuple):
    """A column's title, and whether it holds numbers (set flush right)."""

    title: str
    number: bool = False


class Cell(NamedTuple):
    text: str
    link: str = ""


class Table(NamedTuple):
    """A table; each row has a cell per column."""

    title: str
    note: str
    columns: Sequence[Column]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Summary:
    """What a page says besides its drawings; `lead` is the line below `name`."""

    name: str
    lead: str
    tiles: list[Tile]
    tables: list[Table]


def make_table(
    title: str, columns: Sequence[str | Column], rows: Iterable[Sequence[str | Cell]], *, note: str = ""
) -> Table:
    """A table of plain words and cells. Columns given as words: the first is text, the others are numbers."""
    given = [column if isinstance(column, Column) else Column(column, number=i > 0) for i, column in enumerate(columns)]
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    return Table(title, note, given, cells)


def check_suffix(out: Path, option: str) -> None:
    """Raises `ConfigError` for a page that is not called .html."""
    if out.suffix != ".html":
        raise ConfigError(f"{option}: {out}: does not end in .html")


def page_template(name: str, package: str = "glmforge.report") -> jinja2.Template:
    """The page `name` of a package, such as 'report.html'; it may include this package's parts of pages."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(place, "") for place in (package, "glmforge.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    return environment.get_template(name)


def _breakable(name: str) -> markupsafe.Markup:
    """`name` with leave to break a line behind its underscores and slashes, and nowhere else inside a word."""
    return markupsafe.Markup(re.sub(r"([_/])", r"\1<wbr>", str(markupsafe.escape(name))))
