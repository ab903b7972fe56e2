"""`glmforge cluster bench` refuses what cannot be measured, in one line, before a process is started."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import GlmforgeError

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID")
TABLE = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    61.05   17.18   30.06 {wrong} 59.71   17.56   30.73      0
"""


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "one rank has nobody to communicate with: give --local N"),
        ("--find-slow", "one rank has nobody to communicate with: give --local N"),
        ("--local 1", "--local 1: give from 2 to 512 ranks"),
        ("--local 2 --min-bytes 2M --max-bytes 1M", "--min-bytes 2097152 is more than --max-bytes 1048576: exchange"),
        ("--local 2 --min-bytes 1T", "--min-bytes: '1T' is no size"),
        ("--local 2 --collective all_reduse", "--collective: 'all_reduse' is none; give one or more of all_reduce"),
        ("--local 2 --factor 1", "--factor 1 does not increase the size"),
        ("--local 2 --backend nccl", "--backend nccl: torch finds no GPU here; give --backend gloo"),
        (
            "--local 2 --nccl-tests require",
            "--nccl-tests require: nccl-tests is used for NCCL on the GPUs",
        ),
        ("--local 2 --expect 0", "--expect 0: give the bus bandwidth in GB/s"),
        ("--local 2 --timeout 0", "--timeout 0: give from 1 to 86400 seconds"),
        ("--local 2 --find-slow --slow-below 2", "--slow-below 2: give a share between 0 and 1"),
        ("--local 2 --find-slow --exchange-bytes -1", "--exchange-bytes: '-1' is no size"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["cluster", "bench", *arguments.split()])
    assert isinstance(result.exception, GlmforgeError), result.output
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("wrong", "expect", "status", "said"),
    [
        (0, [], 0, ""),
        (0, ["--expect", "35"], 0, "pass: all_reduce: bus bandwidth 30.73 GB/s"),
        (0, ["--expect", "40"], 1, "fail: all_reduce: bus bandwidth 30.73 GB/s at 1,048,576 bytes is less than 32"),
        (5, [], 1, "fail: 5 elements are wrong"),
    ],
)
def test_with_nccl_tests_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int, expect: list[str], status: int, said: str
) -> None:
    program = tmp_path / "all_reduce_perf"
    (tmp_path / "table").write_text(TABLE.format(wrong=wrong))
    program.write_text(f"#!/bin/sh\nexec cat {tmp_path}/table\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    file = tmp_path / "result.json"
    result = CliRunner().invoke(app, ["cluster", "bench", "--collective", "all_reduce", "--json", str(file), *expect])
    assert result.exit_code == status, result.output
    assert said in result.output
    assert re.search(r"^all_reduce +1048576 +262144 +float +sum +-1 +61.05 +17.18 +30.06", result.output, re.MULTILINE)
    written = json.loads(file.read_text())
    assert (written["measured_by"], written["num_ranks"], len(written["rows"])) == ("nccl-tests", 8, 2)
    assert [row["busbw"] for row in written["rows"]] == [30.06, 30.73]
