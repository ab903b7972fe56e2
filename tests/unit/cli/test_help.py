"""Every command says what it does, with an example, in paragraphs that fit the terminal."""

import itertools
import re

import pytest
import typer
from typer.testing import CliRunner

from glmforge.cli.app import app

runner = CliRunner()


def commands(group: typer.main.TyperGroup, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        below = (*path, name)
        found += commands(command, below) if hasattr(command, "commands") else [below]
    return found


COMMANDS = commands(typer.main.get_command(app))


def help_of(command: tuple[str, ...], width: int) -> str:
    shown = runner.invoke(app, [*command, "--help"], env={"COLUMNS": str(width), "TERM": "dumb"})
    assert shown.exit_code == 0, shown.output
    return shown.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_of_the_command_itself(command: tuple[str, ...]) -> None:
    text = help_of(command, 200)
    about, _, examples = text.partition("Example")
    assert about.strip().startswith("Usage: ")
    assert re.search(rf"^ +glmforge {' '.join(command)}\b", examples, re.MULTILINE), text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_paragraphs_fill_the_terminal(command: tuple[str, ...]) -> None:
    """No line of prose ends where the source's line ended: the first word of the next line would not have fitted."""
    paragraphs = help_of(command, 80).split("╭")[0].split("Example")[0].split("\n")
    for line, after in itertools.pairwise(paragraphs):
        if line.strip() and after.strip() and not line.lstrip().startswith("Usage"):
            first_word = after.split()[0]
            assert len(line.rstrip()) + 1 + len(first_word) > 78, line
