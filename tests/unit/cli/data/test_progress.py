"""How far a command is: plain lines by work done, a last line on a terminal."""

import io

import pytest
from rich.console import Console

from glmforge.cli.data.progress import step_progress, work_progress
from glmforge.data.corpus.engine.run import Progress
from glmforge.errors import DataError


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


def test_steps_have_a_line_for_each_tenth():
    console = Console(file=io.StringIO())
    with step_progress(console) as show:
        for done in range(41):
            show(Progress("minhash", "sets", done, 40))
        show(Progress("minhash", "documents", 1, 1))
    lines = console.file.getvalue().splitlines()
    assert lines == [*(f"minhash: sets: {done} of 40 tasks" for done in range(4, 41, 4)), "minhash: 1 of 1 tasks"]


def test_small_steps_have_one_line():
    console = Console(file=io.StringIO())
    with step_progress(console) as show:
        for done in range(10):
            show(Progress("exact", "repeats", done, 9))
    assert console.file.getvalue().splitlines() == ["exact: repeats: 9 of 9 tasks"]


def test_steps_have_bars_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with step_progress(console) as show:
        show(Progress("minhash", "sets", 3, 40))
    assert "minhash: sets" in console.file.getvalue()
    assert "3/40" in console.file.getvalue()


def test_a_run_that_is_refused_draws_nothing():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(DataError), step_progress(console):
        raise DataError("refused")
    assert console.file.getvalue() == ""


def _interrupted(console: Console) -> None:
    with step_progress(console) as show:
        show(Progress("minhash", "sets", 3, 40))
        raise KeyboardInterrupt


def test_an_interrupted_run_says_what_to_do():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        _interrupted(console)
    assert console.file.getvalue().endswith("\n\x1b[?25h"), "the cursor is shown again"
