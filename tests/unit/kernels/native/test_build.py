"""The library is compiled once, by whoever comes first, and done without where it cannot be."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.kernels.native import build

LOAD = "from glmforge.kernels.native.build import library; assert library() is not None"


@pytest.fixture
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a library that has not been asked for yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path
    build.library.cache_clear()


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_two_processes_at_once(tmp_path: Path) -> None:
    compiler = executable(tmp_path / "quick", 'exec c++ "$@" -O0')
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": str(compiler)}
    processes = [subprocess.Popen([sys.executable, "-c", LOAD], env=environment) for _ in range(2)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    (made,) = (tmp_path / "glmforge/native").iterdir()
    assert made.suffix == ".so"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "no C++ compiler '"),
        ("echo 'fatal error: out of luck' >&2; exit 1", "failed: fatal error: out of luck"),
        ("exit 0", "No such file"),
    ],
)
def test_without_a_compiler(
    script: str | None, words: str, anew: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = anew / "compiler"
    if script is not None:
        executable(compiler, script)
    monkeypatch.setenv("CXX", str(compiler))
    with caplog.at_level(logging.WARNING):
        assert build.library() is None
    assert words in caplog.text
    assert "Plain PyTorch generates instead" in caplog.text
