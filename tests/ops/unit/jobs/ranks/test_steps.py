"""The step that a program writes for its log: as eight bytes, or as a shell writes it."""

from pathlib import Path

import pytest

from glmforge_ops.jobs.ranks.rank import StepFile, step_of


@pytest.mark.parametrize(
    ("content", "step"),
    [
        ((5).to_bytes(8, "little"), 5),
        ((2**55).to_bytes(8, "little"), 2**55),
        (b"12345678", 12_345_678),
        (b"1234567\n", 1_234_567),
        (b"41\n", 41),
        (b"", None),
        (b"step 4", None),
        (b"9" * 32, None),
    ],
)
def test_what_is_written(content: bytes, step: int | None) -> None:
    assert step_of(content) == step


def test_a_file_that_is_just_being_written_changes_nothing() -> None:
    """A shell empties it first."""
    steps = StepFile(0)
    assert steps.read() is None
    for content, step in ((b"41\n", 41), (b"", 41), (b"42\n", 42)):
        Path(steps.path).write_bytes(content)
        assert steps.read() == step
    steps.close()
    assert not Path(steps.path).exists()
