"""docs/plan.md has the tables that the code makes, and names every option of the command."""

import re
from pathlib import Path

import plan_tables
import pytest
import typer

from glmforge.cli.app import app

PAGE = (Path(__file__).parents[3] / "docs" / "plan.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("make", plan_tables.TABLES)
def test_tables_are_current(make) -> None:
    assert make() in PAGE, "run scripts/doc_tables.py"


def test_every_option_is_named() -> None:
    command = typer.main.get_command(app).commands["plan"]
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert sorted(option for option in options if not re.search(rf"{option}\b", PAGE)) == []
