"""The step that a launcher reads: written after each step, and never a reason to end a run."""

from pathlib import Path

import pytest

from glmforge.training.hooks.launcher import STEP_FILE_VARIABLE, LauncherHook
from glmforge_ops.jobs.ranks.rank import STEP_VARIABLE, StepFile
from helpers.hooks import FakeTrainer


def test_the_launcher_reads_what_the_hook_writes() -> None:
    assert STEP_FILE_VARIABLE == STEP_VARIABLE
    file = StepFile(rank=0)
    hook = LauncherHook({STEP_VARIABLE: file.path})
    trainer = FakeTrainer(hook)
    assert file.read() is None
    trainer.state.step = 255
    trainer.start()
    assert file.read() == 255
    trainer.step()
    assert file.read() == 256
    trainer.state.step = 12
    hook.on_rollback(trainer)  # type: ignore[arg-type]
    assert file.read() == 12
    hook.close()
    file.close()
    assert not Path(file.path).exists()


def test_without_a_launcher_nothing_is_written(tmp_path: Path) -> None:
    trainer = FakeTrainer(LauncherHook({}))
    trainer.start()
    trainer.step()


def test_a_file_that_is_gone_is_said_and_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = FakeTrainer(LauncherHook({STEP_VARIABLE: str(tmp_path / "gone")}))
    trainer.start()
    trainer.step()
    assert "cannot be opened" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """The file lies where every user can make files."""
    precious = tmp_path / "precious"
    precious.write_text("text")
    (tmp_path / "link").symlink_to(precious)
    trainer = FakeTrainer(LauncherHook({STEP_VARIABLE: str(tmp_path / "link")}))
    trainer.start()
    trainer.step()
    assert precious.read_text() == "text"
