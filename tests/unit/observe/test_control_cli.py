"""`glmforge control` as typed."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glmforge.cli.app import app
from glmforge.observe.control import REFUSED, TAKEN, ControlError, take_command
from glmforge.observe.run import record_event


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record_event(tmp_path, "started", step=0)
    return tmp_path


def control(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["control", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "text", "what"),
    [
        (["save"], "save\n", "saves a checkpoint after the next step"),
        (["stop"], "stop\n", "exits with status 0"),
        (["profile", "--steps", "5"], "profile 5\n", "profiles 5 step(s) on its first and last rank, into "),
    ],
)
def test_it_leaves_the_command_and_says_what_happens(run: Path, arguments: list[str], text: str, what: str) -> None:
    result = control(run, *arguments)
    assert result.exit_code == 0
    assert what in result.stderr
    assert take_command(run) == text


@pytest.mark.parametrize(("event", "refused"), [(TAKEN, False), (REFUSED, True)])
def test_it_waits_for_the_answer(run: Path, monkeypatch: pytest.MonkeyPatch, event: str, refused: bool) -> None:
    def the_run_takes_a_step(_: float) -> None:
        assert take_command(run) == "save\n"
        record_event(run, event, step=1234, detail="the answer")

    monkeypatch.setattr(time, "sleep", the_run_takes_a_step)
    result = control(run, "save", "--wait")
    if refused:
        assert isinstance(result.exception, ControlError)
        assert "the run refused: the answer" in str(result.exception)
    else:
        assert result.exit_code == 0
        assert "taken after step 1,234: the answer" in result.stderr


@pytest.mark.parametrize("arguments", [["halt"], ["save", "--steps", "3"], ["profile", "--steps", "0"]])
def test_what_makes_no_sense_is_refused(run: Path, arguments: list[str]) -> None:
    assert control(run, *arguments).exit_code == 2
    assert take_command(run) is None


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    result = control(tmp_path / "nothing", "save")
    assert isinstance(result.exception, ControlError)
    assert not (tmp_path / "nothing").exists()
