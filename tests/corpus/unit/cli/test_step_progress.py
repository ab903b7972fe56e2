"""How far the steps of a pipeline are: a line for each tenth, or bars on a terminal."""

import io

import pytest
from rich.console import Console

from glmforge.errors import DataError
from glmforge_corpus.cli.terminal import step_progress
from glmforge_corpus.pipeline.run import StepProgress


def test_steps_have_a_line_for_each_tenth():
    console = Console(file=io.StringIO())
    with step_progress(console) as show:
        for done in range(41):
            show(StepProgress("minhash", "sets", done, 40))
        show(StepProgress("minhash", "documents", 1, 1))
    lines = console.file.getvalue().splitlines()
    assert lines == [*(f"minhash: sets: {done} of 40 tasks" for done in range(4, 41, 4)), "minhash: 1 of 1 tasks"]


def test_small_steps_have_one_line():
    console = Console(file=io.StringIO())
    with step_progress(console) as show:
        for done in range(10):
            show(StepProgress("exact", "repeats", done, 9))
    assert console.file.getvalue().splitlines() == ["exact: repeats: 9 of 9 tasks"]


def test_steps_have_bars_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with step_progress(console) as show:
        show(StepProgress("minhash", "sets", 3, 40))
    assert "minhash: sets" in console.file.getvalue()
    assert "3/40" in console.file.getvalue()


def test_a_run_that_is_refused_draws_nothing():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(DataError), step_progress(console):
        raise DataError("refused")
    assert console.file.getvalue() == ""


def _interrupted(console: Console) -> None:
    with step_progress(console) as show:
        show(StepProgress("minhash", "sets", 3, 40))
        raise KeyboardInterrupt


def test_an_interrupted_run_says_what_to_do():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(KeyboardInterrupt, match="run it again to resume"):
        _interrupted(console)
    assert console.file.getvalue().endswith("\n\x1b[?25h"), "the cursor is shown again"
