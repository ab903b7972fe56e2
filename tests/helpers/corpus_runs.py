"""Runs of a corpus pipeline in a process of their own, which may be killed at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

TIME_LIMIT_S = 1800  # of a busy machine: what takes longer hangs


def published(output: Path) -> dict[str, bytes]:
    """What a run hands over; CPU seconds and paths differ from run to run and are left out."""
    report = json.loads((output / "report.json").read_bytes())
    for stage in report["stages"]:
        stage["statistics"].pop("seconds")
    del report["pipeline"]
    files = [path for folder in ("documents", "held_out") for path in sorted((output / folder).glob("*"))]
    found = {str(path.relative_to(output)): path.read_bytes() for path in [*files, output / "quarantine.jsonl"]}
    return found | {"report": json.dumps(report, sort_keys=True).encode()}


def finished_tasks(output: Path) -> int:
    return sum(1 for _ in (output / ".work").glob("*/*/*/done.json"))


def run_until_killed(pipeline: Path, overrides: list[str], output: Path, after: int, random_: random.Random) -> bool:
    """Start `glmforge data run` and kill all of its processes after `after` more tasks and a random moment.

    Returns whether it was killed; False if it had come to its end before. What is tested does not depend on when the
    blow falls: the moment is random so that it falls everywhere in time.
    """
    command = [sys.executable, "-m", "glmforge", "data", "run", str(pipeline), f"output={output}", *overrides]
    target = finished_tasks(output) + after
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + TIME_LIMIT_S
    while finished_tasks(output) < target and not _ends(process, within_s=0.005):
        assert time.monotonic() < deadline, "hangs"
    killed = not _ends(process, within_s=random_.random() * 0.05)
    if killed:
        os.killpg(process.pid, signal.SIGKILL)
    printed, _ = process.communicate()
    assert killed or process.returncode == 0, printed.decode()
    return killed


def _ends(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def run_to_its_end(pipeline: Path, overrides: list[str], output: Path) -> str:
    """What `glmforge data run` prints; it must succeed."""
    command = [sys.executable, "-m", "glmforge", "data", "run", str(pipeline), f"output={output}", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
