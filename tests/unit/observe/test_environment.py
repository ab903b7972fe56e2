import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from glmforge.observe.environment import describe_machine, git_revision, library_versions, process_rss_bytes


def test_machine_agrees_with_psutil() -> None:
    machine = describe_machine()
    json.dumps(machine)
    assert machine["memory_bytes"] == psutil.virtual_memory().total
    assert 1 <= machine["cores"] <= (os.cpu_count() or 1)
    assert machine["cpu"]
    assert isinstance(machine["gpus"], list)


def test_rss_agrees_with_psutil() -> None:
    # Memory moves between the two readings, and the kernel counts per-CPU lazily: 10 % or 16 MiB.
    expected = psutil.Process().memory_info().rss
    assert process_rss_bytes() == pytest.approx(expected, rel=0.1, abs=16 << 20)


def test_versions_name_only_what_is_installed() -> None:
    versions = library_versions(("torch", "no-such-package-here"))
    assert set(versions) == {"python", "torch"}
    assert versions["torch"].startswith("2.")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    _git(root, "init", "-q")
    return root


def _git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_git_revision_is_the_commit_and_tells_changes(repository: Path) -> None:
    (repository / "file").write_text("one")
    _git(repository, "add", "file")
    _git(repository, "commit", "-q", "-m", "first")
    _git(repository, "tag", "v1")  # a tag must not replace the commit's name
    commit = _git(repository, "rev-parse", "HEAD")
    assert git_revision(repository) == commit
    (repository / "untracked").write_text("two")
    assert git_revision(repository) == commit
    (repository / "file").write_text("two")
    assert git_revision(repository) == f"{commit}-dirty"


def test_git_revision_is_none_where_git_has_no_answer(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_revision(repository) is None  # no commit yet
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert git_revision(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_revision(repository) is None  # no git
