"""Training in a process of its own, which can be killed like any process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from glmforge.config import RunConfig
from glmforge.errors import GlmforgeError
from glmforge.observe.run import RunDirectory

_POLL_SECONDS = 0.05


def train_to_the_end(config_file: Path) -> None:
    """Run `glmforge train` and wait for it. Raises `GlmforgeError` if it fails."""
    process = _start(config_file)
    _check_exit(process.wait())


def train_and_kill(config: RunConfig, config_file: Path, at_step: int) -> int:
    """Run `glmforge train`, kill it with SIGKILL once step `at_step` is recorded; returns the last recorded step."""
    metrics = RunDirectory(config.output_dir).metrics
    process = _start(config_file)
    try:
        while _num_lines(metrics) < at_step:
            if process.poll() is not None:
                _check_exit(process.returncode)
                raise GlmforgeError(f"{config_file}: the training ended before step {at_step}; give it more --minutes")
            time.sleep(_POLL_SECONDS)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return _num_lines(metrics)


def _start(config_file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "glmforge", "train", os.fspath(config_file)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _check_exit(code: int) -> None:
    if code != 0:
        raise GlmforgeError(f"glmforge train ended with exit status {code}; its message stands above")


def _num_lines(path: Path) -> int:
    """Whole lines of a file that a process is writing; one per step, as the demo logs every step."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
