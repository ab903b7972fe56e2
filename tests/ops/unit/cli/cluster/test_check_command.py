"""`glmforge cluster check`: its findings in a file, or in one line why not."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import DataError

HERE = ["cluster", "check", "--local", "--only", "limits.files", "--json"]


def test_findings_as_json(tmp_path: Path) -> None:
    CliRunner().invoke(app, [*HERE, str(tmp_path / "new/found.json")])
    found = json.loads((tmp_path / "new/found.json").read_text())
    assert list(found["checks"]) == ["reach.ssh", "limits.files"]


@pytest.mark.parametrize(("name", "said"), [("", "is a directory"), ("file/found.json", "is a file")])
def test_findings_that_cannot_be_written_are_refused_before_nodes_are_asked(
    tmp_path: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("glmforge_ops.hosts.fanout.Fanout.run")
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(app, [*HERE, str(tmp_path / name)])
    assert isinstance(refused.exception, DataError), refused.exception
    assert said in str(refused.exception)
