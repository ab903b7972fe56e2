"""docs/plan.md and the pages that it leads to name every option of the command."""

import re
from pathlib import Path

import typer

from glmforge.cli.app import app

DOCS = Path(__file__).parents[3] / "docs"
PAGE, *OTHERS = ((DOCS / name).read_text("utf-8") for name in ("plan.md", "cost.md", "stages.md", "plan-accuracy.md"))


def test_every_option_is_named() -> None:
    text = "".join([PAGE, *OTHERS])
    command = typer.main.get_command(app).commands["plan"]
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert sorted(option for option in options if not re.search(rf"{option}\b", text)) == []
