"""What every page is made of: templates that need nothing else, headline numbers, tables."""

import re
from typing import NamedTuple

import jinja2
import markupsafe


class Tile(NamedTuple):
    """A headline number."""

    label: str
    value: str
    unit: str = ""


class Table(NamedTuple):
    """Rows of words under their columns; the first column is text, the others are numbers."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]


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
