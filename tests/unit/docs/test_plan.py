"""docs/plan.md has what the code makes of it; with the pages that it leads to, it names every option of the command."""

import re
from pathlib import Path

import plan_tables
import pytest
import typer

from glmforge.cli.app import app

DOCS = Path(__file__).parents[3] / "docs"
PAGE, *OTHERS = ((DOCS / name).read_text("utf-8") for name in ("plan.md", "cost.md", "stages.md", "plan-accuracy.md"))


@pytest.mark.parametrize("make", plan_tables.TABLES)
def test_tables_are_current(make) -> None:
    assert make() in PAGE, "run scripts/doc_tables.py"


def test_every_option_is_named() -> None:
    text = "".join([PAGE, *OTHERS])
    command = typer.main.get_command(app).commands["plan"]
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert sorted(option for option in options if not re.search(rf"{option}\b", text)) == []
