"""The page of a look at a machine, from facts that were made up."""

import json
from typing import Any

import pytest

from glmforge_ops.environment.lint import lint_environment
from glmforge_ops.health import look
from glmforge_ops.health.checks.check import Status, failed, passed, skipped, unknown, warning
from glmforge_ops.health.checks.examine import counts_in_words
from glmforge_ops.health.look import Health

GIB = 2**30
SYSTEM: dict[str, Any] = {
    "host": "node1",
    "system": "Debian",
    "kernel": "6.1",
    "uptime_s": 3 * 86_400.0,
    "load": 1.5,
    "cores": 64,
    "memory": {"total": 512 * GIB, "available": 500 * GIB},
    "swap": {"total": 0, "free": 0},
    "shared_memory": {"total": GIB, "free": GIB // 20},
    "limits": {"open_files": -1, "locked_memory": 8 << 20, "processes": 300_000},
    "interfaces": [{"name": "eth0", "state": "up", "speed": 100_000, "mtu": 9000}],
    "training": [{"pid": 12, "user": "ada", "age_s": 7200.0, "parent": 1, "command": "torchrun x"}],
}
MOUNT: dict[str, Any] = {
    "point": "/data",
    "type": "nfs4",
    "options": "ro,hard",
    "total_gb": 100.0,
    "free_gb": 25.0,
    "paths": ["/data/a", "/data/b"],
}
MOUNTS: dict[str, Any] = {"mounts": [MOUNT], "missing": ["/local"]}
GPU: dict[str, Any] = {
    "index": 0,
    "lost": False,
    "name": "NVIDIA H100",
    "memory_total": 80 * GIB,
    "memory_used": 2 * GIB,
    "utilization": 7,
    "temperature": 41,
    "ecc_uncorrected": 3,
    "processes": [{"pid": 99, "command": "python train.py", "orphan": False}],
}
GPUS: dict[str, Any] = {"error": None, "driver": "570.1", "cuda": 12080, "gpus": [GPU]}


def health(**changes: Any) -> Health:
    values: dict[str, Any] = {"facts": {"system": SYSTEM, "disks": MOUNTS, "gpus": GPUS}, "outcomes": {}}
    values["versions"] = {"torch": "2.13.0"}
    values["facts"] = values["facts"] | changes.pop("facts", {})
    return Health(**values | changes)


def page(found: Health) -> str:
    return "\n".join(" ".join(line) for line in found.lines())


@pytest.mark.parametrize(
    "words",
    [
        "machine node1, Debian, Linux 6.1, up 3d 00h",
        "processor 64 cores, load 1.5",
        "memory 500 GiB of 512 GiB free",
        "swap none",
        "/dev/shm 51.2 MiB of 1.00 GiB free",
        "open files unlimited, locked memory 8.00 MiB, processes 300,000",
        "network eth0 up, 100 Gbit/s, MTU 9000",
        "training process 12 of ada, for 2h 00m; its parent has ended: torchrun x",
        "disk /data: 25.0 of 100.0 GB free, nfs4, read-only (/data/a, /data/b)",
        "disk /local: is not there",
        "GPUs 1, driver 570.1, CUDA up to 12.8",
        "GPU 0: NVIDIA H100: 2.00 GiB of 80.0 GiB used, 7 % busy, 41 degrees C, 3 uncorrected memory errors, "
        "used by 99 (python train.py)",
        "versions torch 2.13.0",
        "pass environment no variable",
    ],
)
def test_a_fact_is_a_line(words: str) -> None:
    assert words in page(health())


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ({**GPUS, "gpus": []}, "GPUs none"),
        ({**GPUS, "gpus": [], "error": "NVML does not start (error 9)"}, "GPUs none: NVML does not start (error 9)"),
        ({**GPUS, "gpus": [{"index": 3, "lost": True}]}, "GPU 3: lost: "),
        ({**GPUS, "gpus": [{**GPU, "processes": [{"pid": 7, "command": None}]}]}, "used by 7 (?)"),
    ],
)
def test_gpus_that_are_not_as_they_should_be(gpus: dict[str, Any], words: str) -> None:
    assert words in page(health(facts={"gpus": gpus}))


def test_a_part_without_an_answer_fails_and_the_others_are_shown() -> None:
    found = health(facts={"disks": {}}, outcomes={"disks": unknown("no answer within 5 s")})
    assert "fail disks no usable answer: no answer within 5 s" in page(found)
    assert "fail disks invalid answer: 'mounts'" in page(found)
    assert "GPUs 1" in page(found)
    assert found.exit_status(strict=False) == 1


def test_a_machine_without_os_release_and_shared_memory_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> Any:
        raise FileNotFoundError("no such file")

    monkeypatch.setattr("platform.freedesktop_os_release", missing)
    monkeypatch.setattr("psutil.disk_usage", missing)
    found = health(facts={"system": look.system()})
    assert ", Linux, Linux " in page(found)
    assert "/dev/shm none" in page(found)


@pytest.mark.parametrize(
    ("outcome", "plain", "strict"),
    [
        (passed("1"), 0, 0),
        (skipped("no device"), 0, 0),
        (warning("1", "2", "fix it"), 0, 1),
        (failed("1", "2", "fix it"), 1, 1),
    ],
)
def test_verdicts_decide_the_exit_status(outcome, plain: int, strict: int) -> None:
    found = health(outcomes={"disk.free": outcome})
    assert (found.exit_status(strict=False), found.exit_status(strict=True)) == (plain, strict)
    words = "not judged disk.free" if outcome.status is Status.SKIPPED else f"disk.free {outcome.value}"
    assert f"{outcome.status.value} {words}" in page(found)


@pytest.mark.parametrize(
    ("variable", "value", "plain", "strict"), [("NCCL_TIMEOUT", "1", 1, 1), ("NCCL_DEBUG", "TRACE", 0, 1)]
)
def test_variables_that_are_wrong_are_verdicts(variable: str, value: str, plain: int, strict: int) -> None:
    found = health(environment=tuple(lint_environment({variable: value})))
    assert (found.exit_status(strict=False), found.exit_status(strict=True)) == (plain, strict)
    assert f"environment {variable}={value}: " in page(found)
    assert "no variable that is wrong" not in page(found)


def test_counts_and_json_agree() -> None:
    found = health(
        outcomes={"a": passed("1"), "b": failed("1", "2", "m"), "c": warning("1", "2", "m"), "d": skipped("x")},
        environment=tuple(lint_environment({"NCCL_TIMEOUT": "1"})),
    )
    assert counts_in_words(found.count) == "1 passed, 1 warnings, 2 failed, 1 skipped"
    data = json.loads(json.dumps(found.as_dict()))
    assert data["counts"] == {"pass": 1, "skipped": 1, "warning": 1, "fail": 2}
    assert data["facts"]["gpus"]["gpus"][0]["name"] == "NVIDIA H100"
    assert data["checks"]["b"] == {"status": "fail", "value": "1", "threshold": "2", "fix": "m"}
    assert data["environment"][0]["name"] == "NCCL_TIMEOUT"
