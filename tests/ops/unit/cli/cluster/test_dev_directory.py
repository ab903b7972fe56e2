"""Where a development cluster lies, as its commands are told."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge_ops.dev import DevCluster


def test_a_directory_beside_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(DevCluster, "open", lambda directory: opened.append(directory) or 1 / 0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for words in (["status"], ["heal", "node1"]):
        CliRunner().invoke(app, ["cluster", "dev", *words, "--directory", "../lab"])
    assert opened == [tmp_path / "lab"] * 2
