"""Signals to a demo while it starts the training."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glmforge.recipes.demo import training


def test_a_signal_while_the_training_starts_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        signal.raise_signal(signal.SIGTERM)
        return popen(["sleep", "100"], **options)

    monkeypatch.setattr(training.subprocess, "Popen", start)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            pytest.raises(training.EndedEarlyError, match="ended by SIGTERM"),
            training._started(tmp_path / "run.yaml", 1) as process,
        ):
            assert process.wait(60) == -signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
