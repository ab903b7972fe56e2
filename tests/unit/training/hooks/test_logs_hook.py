"""Log messages of a rank in a file of the run: what they look like, how large they grow, who writes."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.observe import LogsConfig
from glmforge.observe.run import RunDirectory
from glmforge.training.hooks import LogsHook
from helpers.hooks import FakeTrainer

LOG = logging.getLogger("glmforge.training.something")


def write(root: Path, *, say: Any = lambda: LOG.warning("it is %d o'clock\nnow", 3), **settings: Any) -> list[str]:
    hook = LogsHook(RunDirectory(root), LogsConfig(**settings))
    FakeTrainer(hook).start()
    say()
    hook.close()
    LOG.warning("after the end")
    file = root / "logs" / "rank-00000.log"
    return file.read_text().splitlines() if file.exists() else []


def test_text(tmp_path: Path) -> None:
    first, second = write(tmp_path)
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z rank 0 WARNING glmforge\.training\.something: it is 3 o'clock"
    assert re.fullmatch(form, first)
    assert second == "now"


def test_json(tmp_path: Path) -> None:
    (line,) = write(tmp_path, format="json")
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "rank": 0,
        "level": "warning",
        "logger": "glmforge.training.something",
        "message": "it is 3 o'clock\nnow",
    }


def test_level(tmp_path: Path) -> None:
    assert write(tmp_path, level="error") == []


def test_size_is_bounded(tmp_path: Path) -> None:
    lines = write(tmp_path, max_bytes=4096, keep=1, say=lambda: [LOG.warning("%d %s", n, "x" * 200) for n in range(99)])
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["rank-00000.log", "rank-00000.log.1"]
    assert all(file.stat().st_size <= 4096 for file in files)
    assert ": 98 " in lines[-1]


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "logs").write_text("in the way")
    hook = LogsHook(RunDirectory(tmp_path), LogsConfig())
    FakeTrainer(hook).start()
    hook.close()
    assert "observe.logs" in caplog.text
