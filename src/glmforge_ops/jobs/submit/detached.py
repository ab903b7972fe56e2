"""A command of ours that goes on when this process and its terminal are gone."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from glmforge.files import open_regular


def run_detached(words: Sequence[str], directory: Path) -> Path:
    """Start `glmforge WORDS` in a session of its own; the file in `directory` that it writes to."""
    log = directory / f"runner-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
    with open_regular(log, "ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "glmforge", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return log
