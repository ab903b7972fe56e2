"""The picture of the floor plan shows the code as it is."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_picture_agrees_with_the_code() -> None:
    script = ROOT / "scripts/floor_plan.py"
    result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
