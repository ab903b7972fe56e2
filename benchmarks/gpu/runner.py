"""Runs a part in a process of its own and sees it through: what hangs is ended, what dies is gone on behind.

The process that measures may hang in a kernel, be killed, or lose its CUDA context by a wrong address. Its figures are
in the file at every moment (`results.py`), so this process, which never touches the GPU, ends it, notes which figure
it was at, and starts another that goes on with the next one.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpu.results import Figure, write_whole

LOST_CONTEXT = 86
"""Exit status of a process that cannot use the GPU any more."""
FIGURE_LIMIT_S = 150.0
"""A figure that takes longer hangs: compiling takes most of the time of the slowest, half a minute."""
GRACE_S = 20.0
"""After its budget a part must have ended by itself, but for the figure that it is at."""
MOST_PROCESSES = 12


@dataclass(frozen=True)
class PartRun:
    """How a part is run: `budget_s` for all its processes together."""

    part: str
    folder: Path
    dry: bool
    budget_s: float

    @property
    def file(self) -> Path:
        return self.folder / f"gpu_{self.part}.json"

    def command(self, *, left_s: float, resume: bool) -> list[str]:
        words = [sys.executable, "-m", "gpu.worker", self.part, str(self.folder), f"{left_s:.0f}"]
        return words + ["--dry"] * self.dry + ["--resume"] * resume


def run_part(run: PartRun) -> Figure:
    """Run the part to its end and return its file's content."""
    end = time.monotonic() + run.budget_s
    run.file.unlink(missing_ok=True)
    for attempt in range(MOST_PROCESSES):
        left = max(10.0, end - time.monotonic())
        process = subprocess.Popen(run.command(left_s=left, resume=attempt > 0))
        ended_for = _watch(process, run, end + GRACE_S)
        if process.returncode == 0:
            break
        if not run.file.exists():
            raise RuntimeError(f"part {run.part}: ended with status {process.returncode} before it measured anything")
        _note(run.file, ended_for or f"the process ended with status {process.returncode}")
        may_go_on = process.returncode == LOST_CONTEXT or process.returncode < 0
        if not may_go_on or time.monotonic() > end:
            break
    return json.loads(run.file.read_text("utf-8"))


def _watch(process: subprocess.Popen[bytes], run: PartRun, end: float) -> str | None:
    """Wait for the process; why it had to be ended, if it had to."""
    while True:
        try:
            process.wait(timeout=0.2 if run.dry else 1)
            return None
        except subprocess.TimeoutExpired:
            reason = _overdue(run.file, end)
        if reason is not None:
            process.kill()
            process.wait()
            return reason


def _overdue(file: Path, end: float) -> str | None:
    if time.monotonic() > end:
        return "hung: the part's time is up"
    started = [figure["started"] for figure in _figures(file) if figure["status"] == "running"]
    too_long = any(time.time() - start > FIGURE_LIMIT_S for start in started)
    return f"hung: took longer than {FIGURE_LIMIT_S:g} s" if too_long else None


def _figures(file: Path) -> list[Figure]:
    return list(json.loads(file.read_text("utf-8"))["figures"].values()) if file.exists() else []


def _note(file: Path, reason: str) -> None:
    """Write into the file why a process ended, and so what became of the figure that it was at."""
    content = json.loads(file.read_text("utf-8"))
    for figure in content["figures"].values():
        if figure["status"] == "running":
            figure |= {"status": "hung" if reason.startswith("hung") else "crashed", "reason": reason}
    content.setdefault("interruptions", []).append(reason)
    write_whole(file, content)
