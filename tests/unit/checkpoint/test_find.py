import re
from pathlib import Path

import pytest

from glmforge.checkpoint.find import find_checkpoint
from glmforge.errors import CheckpointError
from helpers.checkpoints import save_steps


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_steps(tmp_path / "run" / "checkpoints", 3, 12)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ("", 12),
        ("/checkpoints", 12),
        ("/checkpoints/step-00000003", 3),
        ("@3", 3),
        ("@step-3", 3),
        ("@00000012", 12),
        ("/checkpoints@3", 3),
    ],
)
def test_what_a_path_means(run: Path, source: str, step: int) -> None:
    assert find_checkpoint(Path(f"{run}{source}")) == run / "checkpoints" / f"step-{step:08d}"


def test_a_directory_may_have_such_a_name(run: Path) -> None:
    named = run.with_name("run@3")
    save_steps(named / "checkpoints", 5)
    assert find_checkpoint(named).name == "step-00000005"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("@4", "run@4: no step-00000004 in"),
        ("-2@4", "run-2 has no checkpoints"),
        ("-2", "run-2: no such directory; pass a run, a checkpoint or an export"),
        ("/..", "contains neither checkpoints nor a Hugging Face model"),
    ],
)
def test_what_is_not_there(run: Path, source: str, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(complaint)) as refused:
        find_checkpoint(Path(f"{run}{source}"))
    assert "\n" not in str(refused.value)


def test_those_that_are_there_are_named(run: Path) -> None:
    with pytest.raises(CheckpointError, match="available: step-00000012, step-00000003"):
        find_checkpoint(Path(f"{run}@4"))
