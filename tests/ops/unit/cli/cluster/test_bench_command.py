"""`glmforge cluster bench` refuses what cannot be measured, in one line, before a process is started."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import GlmforgeError

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID")
TABLE = "# Avg bus bandwidth    : 30.73"


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "one rank cannot communicate: give --local N"),
        ("--find-slow", "one rank cannot communicate: give --local N"),
        ("--local 2 --min-bytes 2M --max-bytes 1M", "--min-bytes 2M is more than --max-bytes 1M: swap them"),
        ("--local 2 --min-bytes 1T", "--min-bytes: invalid size '1T'"),
        ("--local 2 --collective all_reduse", "--collective: unknown collective 'all_reduse'; choose from all_reduce"),
        ("--local 2 --backend nccl", "--backend nccl: torch finds no GPU here; give --backend gloo"),
        ("--local 2 --expect 0", "--expect 0: give a bandwidth in GB/s"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["cluster", "bench", *arguments.split()])
    assert isinstance(result.exception, GlmforgeError), result.output
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(("expect", "status"), [([], 0), (["--expect", "35"], 0), (["--expect", "40"], 1)])
def test_nccl_tests_on_path_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expect: list[str], status: int
) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text(f"#!/bin/sh\necho '{TABLE}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    result = CliRunner().invoke(app, ["cluster", "bench", "--collective", "all_reduce", *expect])
    assert result.exit_code == status, result.output
    assert TABLE in result.output
    refused = CliRunner().invoke(app, ["cluster", "bench", "--collective", "all_reduce", "--json", "x.json"])
    assert "--json: nccl-tests prints tables only" in str(refused.exception)
