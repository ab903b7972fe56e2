"""Where commands look for a development cluster."""

from pathlib import Path
from unittest.mock import MagicMock

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


@pytest.mark.parametrize(
    ("where", "hint"),
    [([], "node1\n"), (["--directory", "my lab"], "node1 --directory 'my lab'\n")],
)
def test_what_brings_a_node_back_names_the_same_cluster(
    monkeypatch: pytest.MonkeyPatch, where: list[str], hint: str
) -> None:
    monkeypatch.setattr(DevCluster, "open", lambda _: MagicMock())
    for command in ("fail", "cut"):
        done = CliRunner().invoke(app, ["cluster", "dev", command, "node1", *where])
        assert done.stdout.endswith(f": glmforge cluster dev heal {hint}")
