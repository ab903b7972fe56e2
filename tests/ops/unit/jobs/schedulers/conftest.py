from pathlib import Path

import pytest

from helpers.scheduler_programs import Answers, scheduler_programs


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Programs that print what is asked of them, and no others on PATH."""
    make = scheduler_programs(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return make
