"""`glmforge sweep` and `glmforge chain` tell the same in the same way."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge_ops.cli.launch.common import go_on
from glmforge_ops.jobs.state import JobState
from helpers.made_jobs import made_job


class Here:
    """Jobs that are run from here."""

    root, is_queued = Path("life"), False

    def __init__(self, *states: JobState) -> None:
        self.states = states

    def run(self, report: Any) -> dict[str, JobState]:
        report("life-0", "starts")
        return {f"life-{number}": state for number, state in enumerate(self.states)}


def test_one_that_has_not_finished_gives_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    go_on(Here(JobState.FINISHED, JobState.FINISHED), "sweep", detach=False)  # type: ignore[arg-type]
    with pytest.raises(typer.Exit) as left:
        go_on(Here(JobState.FINISHED, JobState.FAILED), "chain", detach=False)  # type: ignore[arg-type]
    assert left.value.exit_code == 1
    assert capsys.readouterr().err.splitlines() == [
        "life-0: starts",
        "life: 2 of 2 points have finished",
        "life-0: starts",
        "life: 1 of 2 stages have finished",
        "Next: glmforge chain show life",
    ]


@pytest.mark.parametrize("words", [["sweep", "resubmit"], ["sweep", "cancel"], ["chain", "resume"], ["chain", "show"]])
def test_one_that_there_is_not(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "lr", "--jobs-dir", str(tmp_path)])
    assert done.exit_code != 0
    assert "lr" in str(done.exception) + done.stderr


@pytest.mark.parametrize("group", ["sweep", "chain"])
@pytest.mark.parametrize(
    ("name", "told"), [("", "(nothing): invalid name of a {group}"), ("air", "air: is a job, not a {group}")]
)
def test_nothing_else_is_taken_for_one(tmp_path: Path, group: str, name: str, told: str) -> None:
    """Whose advice would be to delete it."""
    made_job(tmp_path, "air")
    done = CliRunner().invoke(app, [group, "show", name, "--jobs-dir", str(tmp_path)])
    assert told.format(group=group) in str(done.exception)
