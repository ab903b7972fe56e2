"""The library is compiled once, by whoever comes first, and done without where it cannot be; others' is not loaded."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def compiler(anew: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that is done at once, and notes in the file `made` whenever it makes a library."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    tools = anew / "tools"
    tools.mkdir()
    subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", tools / "library.so"], check=True)
    program = executable(
        tools / "quick",
        f'case "$*" in *-shared*) echo >>{tools}/made; shift $(($# - 1)); cp {tools}/library.so "$1";; esac',
    )
    monkeypatch.setenv("CXX", str(program))
    return program


def num_made(compiler: Path) -> int:
    return len((compiler.parent / "made").read_text())


def ask_again() -> object:
    build.library.cache_clear()
    return build.library()


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def let_all_write(path: Path) -> None:
    path.chmod(0o777)


@pytest.mark.parametrize("damage", [None, cut_off, change_a_byte, let_all_write, lambda path: os.truncate(path, 0)])
def test_a_file_that_is_not_as_it_was_made_is_made_again(
    compiler: Path, anew: Path, damage: Callable[[Path], None] | None
) -> None:
    assert build.library() is not None
    (made,) = (anew / "glmforge/native").iterdir()
    assert (made.parent.stat().st_mode & 0o777, made.stat().st_mode & 0o777) == (0o700, 0o700)
    whole = made.read_bytes()
    if damage is not None:
        damage(made)
    assert ask_again() is not None
    assert num_made(compiler) == (1 if damage is None else 2)
    assert [path.read_bytes() for path in made.parent.iterdir()] == [whole]


def of_nobody(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(directory, 65534, 65534)


def replace_by_link(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_nobody, "belongs to another user (uid 65534)"),
        (lambda directory: directory.chmod(0o777), "others can write to"),
        (replace_by_link, "is a link"),
    ],
)
def test_a_directory_of_others_is_not_used(
    compiler: Path, anew: Path, change: Callable[[Path], None], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert build.library() is not None
    directory = anew / "glmforge/native"
    change(directory)
    before = directory.lstat()
    with caplog.at_level(logging.WARNING):
        assert ask_again() is not None
    (record,) = caplog.records
    assert words in record.getMessage()
    assert num_made(compiler) == 2
    assert directory.lstat().st_mtime_ns == before.st_mtime_ns


def test_a_library_is_used_where_there_is_no_compiler(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """But not that of another processor."""
    assert build.library() is not None
    with caplog.at_level(logging.WARNING):
        monkeypatch.setenv("CXX", str(compiler.parent / "none"))
        assert ask_again() is not None
        executable(compiler, "echo out of luck >&2; exit 1")
        monkeypatch.setenv("CXX", str(compiler))
        assert ask_again() is not None
        assert not caplog.records
        monkeypatch.setattr(build, "_processor", lambda: "another one")
        assert ask_again() is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "C++ compiler '"),
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
    assert "Falling back to plain PyTorch" in caplog.text
