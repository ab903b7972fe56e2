"""Files of measured points: ours, those of benchmarks/gpu, and wrong ones; and what they make of a machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.errors import ConfigError
from glmforge.plan.machine.calibration import calibrated_machine, read_calibration
from glmforge.plan.machine.machine import Cores, find_machine
from glmforge.plan.machine.measured import AttentionPoint, CollectivePoint, MatmulPoint
from glmforge.plan.machine.network import find_network

MATMUL = {"m": 64, "n": 32, "k": 16, "dtype": "fp32", "seconds": 1e-3}
GATHER = {"operation": "all_gather", "ranks": 16, "bytes": 1000, "seconds": 0.5}
FILE = {
    "device": "a machine",
    "memory_bytes": 1 << 34,
    "matmuls": [MATMUL],
    "attention": [{"direction": "backward", "flops": 1e9, "seconds": 0.5}],
    "copies": [{"bytes": 2000, "seconds": 2}, {"bytes": 1000, "seconds": 1.0}],
    "collectives": [GATHER, GATHER | {"ranks_per_node": 8, "seconds": 0.75}],
    "processors": {"cores": 2, "slowdown": 1.5},
    "measured": {"date": "2026-01-01"},
}


def written(directory: Path, content: Any) -> Path:
    file = directory / "points.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    known = read_calibration(written(tmp_path, FILE))
    assert known.points.matmuls == (MatmulPoint(64, 32, 16, 2 * 64 * 32 * 16 / 1e-3, "fp32"),)
    assert known.points.attention == (AttentionPoint("backward", 2e9),)
    assert known.points.copy_bandwidth == 1000
    assert known.collectives == (
        CollectivePoint("all_gather", 16, 16, 1000, 0.5),
        CollectivePoint("all_gather", 16, 8, 1000, 0.75),
    )
    assert known.cores == Cores(2, 1.5)
    assert (known.device, known.memory_bytes) == ("a machine", 1 << 34)


def test_points_take_the_place_of_a_known_machines_as_far_as_there_are_any(tmp_path: Path) -> None:
    machine = find_machine("h200")
    copies = read_calibration(written(tmp_path, {"device": "x", "copies": [{"bytes": 1000, "seconds": 1.0}]}))
    changed = copies.applied_to(machine)
    assert changed.accelerator.points is not None
    assert machine.accelerator.points is not None
    assert changed.accelerator.points.copy_bandwidth == 1000
    assert changed.accelerator.points.matmuls == machine.accelerator.points.matmuls
    collectives = read_calibration(written(tmp_path, {"device": "x", "collectives": [GATHER]}))
    assert collectives.applied_to(machine).collectives == collectives.collectives


def test_points_alone_make_a_machine_if_they_are_enough(tmp_path: Path) -> None:
    network = find_network("tcp10")
    in_bf16 = FILE | {"matmuls": [MATMUL | {"dtype": "bf16"}, MATMUL]}
    machine = read_calibration(written(tmp_path, in_bf16)).machine(network, 8)
    assert machine.accelerator.bf16_flops == pytest.approx(2 * 64 * 32 * 16 / 1e-3)
    assert machine.accelerator.memory_bandwidth == 1000
    assert machine.cores == Cores(2, 1.5)
    with pytest.raises(ConfigError, match="add bf16 matmuls, copies and memory_bytes, or pass --gpu"):
        read_calibration(written(tmp_path, FILE)).machine(network, 8)


def test_the_machine_is_the_one_asked_for_or_the_one_that_was_measured(tmp_path: Path) -> None:
    of_h200 = written(tmp_path, FILE | {"device": "NVIDIA H200"})
    assert calibrated_machine(of_h200, None, "ib400", 8).accelerator.name == "H200 SXM"
    asked = calibrated_machine(of_h200, "h100-80gb", "ib400", 8)
    assert asked.accelerator.name == "H100 SXM"
    assert asked.accelerator.points is not None
    assert asked.accelerator.points.copy_bandwidth == 1000
    of_none = written(tmp_path, FILE | {"matmuls": [MATMUL | {"dtype": "bf16"}]})
    assert calibrated_machine(of_none, None, "tcp10", 4).accelerator.name == "a machine"


def test_ceilings_of_the_gpu_benchmark_are_points(tmp_path: Path) -> None:
    content = {"device": "NVIDIA H200", "bandwidth": 4.3e12, "matmul_flops": 788e12, "noise": 0.01, "clocks": None}
    known = read_calibration(written(tmp_path, content))
    assert [point.flops_per_second for point in known.points.matmuls] == [pytest.approx(788e12)]
    assert known.points.copy_bandwidth == pytest.approx(4.3e12)
    assert known.device == "NVIDIA H200"


PART: dict[str, Any] = {
    "part": "kernels",
    "dry": False,
    "device": {"name": "NVIDIA H100 80GB HBM3"},
    "ceilings": {"bytes_per_s": 3e12, "bf16_flops_per_s": 800e12, "noise": 0.0},
    "figures": {
        "a": {"kernel": "experts", "implementation": "grouped", "status": "ok", "forward": {"seconds": 0.004}}
        | {"size": "355B gate and up, 131072 rows, 10 of 3072 x 5120"},
        "b": {"kernel": "experts", "implementation": "loop", "status": "ok", "size": "as above"},
        "c": {"kernel": "experts", "implementation": "grouped", "status": "failed", "reason": "no time"},
    },
}


def test_experts_of_the_gpu_benchmark_are_grouped_points(tmp_path: Path) -> None:
    known = read_calibration(written(tmp_path, PART))
    square, grouped = known.points.matmuls
    assert square.flops_per_second == pytest.approx(800e12)
    assert grouped[:3] == (131072, 3072, 5120)
    assert grouped.groups == 10
    assert grouped.flops_per_second == pytest.approx(2 * 131072 * 3072 * 5120 / 0.004)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "must contain one JSON object, not []"),
        ("{", "not valid JSON"),
        ({}, "missing, without a default: device"),
        (FILE | {"copys": []}, "copys: unknown key; did you mean 'copies'?"),
        (FILE | {"matmuls": [MATMUL | {"seconds": 0}]}, "matmuls.0.seconds"),
        (FILE | {"matmuls": [MATMUL | {"m": "64"}]}, "matmuls.0.m"),
        (FILE | {"matmuls": [MATMUL | {"dtype": "fp4"}]}, "matmuls.0.dtype"),
        (FILE | {"matmuls": [MATMUL] * 2001}, "matmuls"),
        (FILE | {"collectives": [GATHER | {"ranks": 1}]}, "collectives.0.ranks"),
        (FILE | {"processors": {"cores": 2, "slowdown": 0.5}}, "processors.slowdown"),
        ('{"device": "x", "matmuls": [{"seconds": NaN}]}', "NaN is not a JSON number"),
        ({"matmul_flops": 0, "bandwidth": 1e12, "device": "x"}, "looks like results of benchmarks/gpu"),
        (PART | {"dry": True}, "dry run"),
        (PART | {"figures": {"a": PART["figures"]["a"] | {"forward": {"seconds": "soon"}}}}, "matmuls.1.seconds"),
    ],
)
def test_a_wrong_file_is_refused_in_words_that_name_it(tmp_path: Path, content: Any, told: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(ConfigError) as raised:
        read_calibration(file)
    assert told in str(raised.value)
    assert "points.json" in str(raised.value)
    assert "\n" not in str(raised.value)
