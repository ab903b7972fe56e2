"""Marks of slow work: the newest counts, whole or not at all."""

from pathlib import Path

import pytest

from glmforge.observe.alive import Mark, read_mark, write_mark


def test_the_newest_mark_takes_the_place_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    assert read_mark(path) is None
    write_mark(path, Mark(12.25, 7, "é\n" * 1000))
    write_mark(path, Mark(13.5, 8191, "evaluation"))
    assert read_mark(path) == Mark(13.5, 8191, "evaluation")


@pytest.mark.parametrize("content", [b"", b"1.0 2", b"now 1 x", b"\xff\xfe\x00"])
def test_a_damaged_mark_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "alive").write_bytes(content)
    assert read_mark(tmp_path / "alive") is None
