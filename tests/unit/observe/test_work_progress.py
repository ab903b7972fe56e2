"""How far a command is: plain lines by work done, a last line on a terminal."""

import io

import pytest
from rich.console import Console

from glmforge.observe.work_progress import work_progress


def _lines(amounts, first_line: float) -> list[str]:
    console = Console(file=io.StringIO())
    with work_progress("reading [/b] x", first_line, console) as show:
        for amount in amounts:
            show(amount, f"{amount} things")
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("amounts", "told"),
    [
        (range(10), []),
        (range(35), [10, 20, 30]),
        ([5, 1000, 1049, 1050, 1102, 1103], [1000, 1050, 1103]),  # at least a twentieth more
        ([10, 19, 20, 9, 10, 11], [10, 20, 10]),  # less than before: another part of the work
    ],
)
def test_plain_lines_go_by_work_done(amounts, told):
    assert _lines(amounts, 10) == [f"reading [/b] x: {amount} things" for amount in told]


def test_a_terminal_has_a_line_that_changes():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with work_progress("reading [/b] x", 1000, console) as show:
        show(1, "one [/i] thing")
    assert "reading [/b] x: one [/i] thing" in console.file.getvalue()
