"""Bandwidth of the GPUs of a node: the node's `python` is a program of the test's own that writes a result."""

import json
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks.check import Context, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.nccl import bandwidth
from glmforge_ops.health.checks.outcome import Outcome
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout

# The file's name is the last argument; what was asked for comes back on standard error.
PROGRAM = """#!/bin/sh
echo "$*" > {asked}
for last; do :; done
cat > "$last" <<'END'
{result}
END
exit {status}
"""


def outcome(
    tmp_path: Path, result: str, status: int = 0, device: str = "NVIDIA H800", gpus: int = 8, **own: float
) -> Outcome:
    program = tmp_path / "python"
    program.write_text(PROGRAM.format(asked=tmp_path / "asked", result=result, status=status))
    program.chmod(0o755)
    facts = {"localhost": {"gpu": Facts({"gpus": [{"name": device, "lost": False}] * gpus})}}
    limits = {name.replace("_", "-"): value for name, value in own.items()}
    context = Context(ClusterConfig(python=str(program)), Thresholds(limits))
    return bandwidth(Session(context, ["localhost"], Fanout(), facts))["localhost"]


def result(busbw: object, wrong: object = 0) -> str:
    return json.dumps({"rows": [{"kind": "all_reduce", "busbw": busbw, "wrong": wrong}]})


@pytest.mark.parametrize(
    ("device", "busbw", "status"),
    [
        ("NVIDIA H800", 170.0, "pass"),
        ("NVIDIA H800", 150.0, "fail"),
        ("NVIDIA H100 80GB HBM3", 170.0, "fail"),
        ("NVIDIA H100 80GB HBM3", 370.0, "pass"),
        ("NVIDIA of tomorrow", 170.0, "skipped"),
    ],
)
def test_each_device_is_held_against_its_own_links(tmp_path: Path, device: str, busbw: float, status: str) -> None:
    found = outcome(tmp_path, result(busbw), device=device)
    assert found.status.value == status
    assert f"{busbw:g} GB/s" in found.value
    assert "--local 8 --backend nccl --collective all_reduce" in (tmp_path / "asked").read_text()


def test_a_limit_of_ones_own_wins(tmp_path: Path) -> None:
    own = {"allreduce_bus_bandwidth": 100.0}
    assert outcome(tmp_path, result(170.0), device="NVIDIA of tomorrow", **own).status.value == "pass"


@pytest.mark.parametrize(
    ("written", "status", "reason"),
    [
        (result(170.0, wrong=3), 1, "3 elements of the sum are wrong"),
        ("", 1, "did not run"),
        ("{}", 0, "rows is missing"),
        ('{"rows": []}', 0, "rows has 0 of one"),
        (result("fast"), 0, "not a number"),
    ],
)
def test_a_measurement_that_failed_fails(tmp_path: Path, written: str, status: int, reason: str) -> None:
    found = outcome(tmp_path, written, status)
    assert found.status.value == "fail"
    assert reason in found.value


def test_one_gpu_has_nobody_to_talk_to(tmp_path: Path) -> None:
    assert outcome(tmp_path, result(1.0), gpus=1).status.value == "skipped"
    assert not (tmp_path / "asked").exists()
