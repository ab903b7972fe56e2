"""Compiled loops are kept in a directory that nobody else can write to, or nowhere."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.data import compiled


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    compiled._directory.cache_clear()
    yield tmp_path
    compiled._directory.cache_clear()


def double(number: int) -> int:
    return 2 * number


def test_a_directory_of_ones_own(place: Path) -> None:
    assert compiled.compiled(double)(4) == 8
    (directory,) = place.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert list(directory.rglob("*.nbi"))


def test_a_directory_of_others_is_not_used(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = compiled._directory(compiled._package_of(double))
    assert made is not None
    made.chmod(0o777)
    compiled._directory.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert compiled.compiled(double)(4) == 8
    assert "others can write to" in caplog.text
    assert not list(made.iterdir())
