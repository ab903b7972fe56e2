"""`scripts/gpu.sh` in its dry mode: every part's code path on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpu

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "part", [part if part == "engine" else pytest.param(part, marks=pytest.mark.full) for part in gpu.PARTS]
)
def test_a_part_runs_dry(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    command = [ROOT / "scripts" / "gpu.sh", part, "--dry", "--out", tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    content = json.loads((tmp_path / f"gpu_{part}.json").read_text())
    assert content["dry"]
    assert content["complete"]
    assert {figure["status"] for figure in content["figures"].values()} <= {"ok", "missing", "skipped"}
