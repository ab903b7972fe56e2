"""A user's own measured points: `glmforge plan --calibrate FILE`.

The file is JSON of this form, in seconds and bytes; what was not measured is omitted:

    {"device": "NVIDIA H200",
     "matmuls": [{"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16", "seconds": 0.0014}],
     "attention": [{"direction": "forward", "flops": 1.4e12, "seconds": 0.003}],
     "copies": [{"bytes": 4294967296, "seconds": 0.001}],
     "collectives": [{"operation": "all_gather", "ranks": 8, "bytes": 268435456, "seconds": 0.0009}]}

A matmul is [m, k] x [k, n], with "groups" so many whose m together are that. Attention is that of the run's own
lengths, its FLOPs those of the causal half. A copy's bytes are those read and written, a collective's the larger of a
rank's input and output; "ranks_per_node" are those of its ranks that are in one node, all of them if it is not given,
and "groups" how many groups did the same at the same time.

`benchmarks/plan_calibration.py` writes such a file for a machine without GPUs, with "processors": how many cores the
ranks share, what slows them down, and the rate of memory-bound operations there. The results of `benchmarks/gpu` serve
as well: their ceilings, and the experts' grouped matmuls of `gpu_kernels.json`.

A file may come from a stranger: it is read within bounds, and every number is checked.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from glmforge.config.explain import explain
from glmforge.config.model import Strict
from glmforge.config.tree import from_value
from glmforge.errors import ConfigError
from glmforge.files import read_json, shown
from glmforge.plan.machine.description import is_file_name, read_network
from glmforge.plan.machine.hardware import Accelerator, accelerator_named
from glmforge.plan.machine.machine import Cores, Machine, find_machine
from glmforge.plan.machine.measured import (
    AttentionPoint,
    CollectiveKind,
    CollectivePoint,
    DType,
    MatmulPoint,
    MeasuredPoints,
)
from glmforge.plan.machine.network import Network, find_network

_MAX_BYTES = 8 << 20
_MAX_POINTS = 2000
_COPIED_BYTES, _WIDTH = 2 * (2 << 30), 8192
"""What `benchmarks/gpu` measures as ceilings: a copy read and written, and a product of square matrices."""
_EXPERTS = re.compile(r".*, (\d{1,9}) rows, (\d{1,6}) of (\d{1,9}) x (\d{1,9})")
"""The name that it gives to a size of the experts' map: rows, experts, outputs and inputs."""

_Size = Annotated[int, Field(gt=0, le=2**30)]
_Bytes = Annotated[int, Field(gt=0, le=2**50)]
_Ranks = Annotated[int, Field(gt=0, le=2**20)]
_Seconds = Annotated[float, Field(ge=1e-9, le=1e6)]


class _Matmul(Strict):
    m: _Size
    n: _Size
    k: _Size
    groups: _Size = 1
    dtype: DType = "bf16"
    seconds: _Seconds


class _Attention(Strict):
    direction: Literal["forward", "backward"]
    flops: float = Field(gt=0, le=1e24)
    seconds: _Seconds


class _Copy(Strict):
    bytes: _Bytes
    seconds: _Seconds


class _Collective(Strict):
    operation: CollectiveKind
    ranks: _Ranks = Field(ge=2)
    ranks_per_node: _Ranks | None = None
    groups: _Ranks = 1
    bytes: _Bytes
    seconds: _Seconds


class _Processors(Strict):
    cores: int = Field(gt=0, le=2**16)
    slowdown: float = Field(default=1.0, ge=1, le=1000)
    bytes_per_second: float | None = Field(default=None, ge=1e3, le=1e15, description="of memory-bound operations")
    operation_seconds: float = Field(default=0.0, ge=0, le=1)
    sharding_seconds: float = Field(default=0.0, ge=0, le=1)
    replication_seconds: float = Field(default=0.0, ge=0, le=1)
    message_seconds: float = Field(default=0.0, ge=0, le=1)


class CalibrationFile(Strict):
    """What the file may hold."""

    device: str = Field(min_length=1, max_length=200)
    memory_bytes: _Bytes | None = None
    matmuls: list[_Matmul] = Field(default=[], max_length=_MAX_POINTS)
    attention: list[_Attention] = Field(default=[], max_length=_MAX_POINTS)
    copies: list[_Copy] = Field(default=[], max_length=_MAX_POINTS)
    collectives: list[_Collective] = Field(default=[], max_length=_MAX_POINTS)
    processors: _Processors | None = None


@dataclass(frozen=True)
class Calibration:
    """The points of a file. `memory_bytes`, `cores`: of a machine without GPUs, which no table knows."""

    device: str
    points: MeasuredPoints
    collectives: tuple[CollectivePoint, ...]
    memory_bytes: int | None = None
    cores: Cores | None = None

    def applied_to(self, machine: Machine) -> Machine:
        """The machine with these points in the place of its own, as far as the file has any of a kind."""
        known = machine.accelerator.points or MeasuredPoints(self.points.source)
        found = {name: values for name, values in self.points._asdict().items() if values}
        accelerator = machine.accelerator._replace(points=known._replace(**found))
        return replace(machine, accelerator=accelerator, collectives=self.collectives or machine.collectives)

    def machine(self, network: Network, ranks_per_node: int) -> Machine:
        """A machine of which nothing is known but these points. Raises `ConfigError` where they are not enough."""
        rates = {
            dtype: max((p.flops_per_second for p in self.points.matmuls if p.dtype == dtype), default=None)
            for dtype in ("bf16", "fp32", "fp8")
        }
        bandwidth = self.points.copy_bandwidth
        if rates["bf16"] is None or bandwidth is None or self.memory_bytes is None:
            raise ConfigError(
                f"--calibrate: '{shown(self.device)}' is an unknown GPU, and its points are not sufficient to "
                "describe it; add bf16 matmuls, copies and memory_bytes, or pass --gpu"
            )
        accelerator = Accelerator(
            name=self.device,
            bf16_flops=rates["bf16"],
            fp8_flops=rates["fp8"],
            fp32_flops=rates["fp32"] or rates["bf16"],
            memory_bytes=self.memory_bytes,
            memory_bandwidth=bandwidth,
            nvlink_bandwidth=None,
            source="measured",
            points=self.points,
        )
        return Machine(accelerator, network, ranks_per_node, self.collectives, self.cores)


def calibrated_machine(path: Path, gpu: str | None, network: str, ranks_per_node: int) -> Machine:
    """The machine that `find_machine` gives with the points of a file; without `gpu` the device that the file names.

    Raises `ConfigError` for a wrong file, and as `find_machine` does.
    """
    calibration = read_calibration(path)
    if gpu is None and accelerator_named(calibration.device) is None:
        link = read_network(network) if is_file_name(network) else find_network(network)
        return calibration.machine(link, ranks_per_node)
    return calibration.applied_to(find_machine(gpu or calibration.device, network, ranks_per_node))


def read_calibration(path: Path) -> Calibration:
    """The points in a file. Raises `ConfigError` for one that is no such file, naming what is wrong with it."""
    content = read_json(path, dict, error=ConfigError, max_bytes=_MAX_BYTES)
    content.pop("measured", None)  # when and where, which benchmarks note beside their figures
    if "matmul_flops" in content or "figures" in content:
        content = _of_gpu_benchmark(content, path)
    try:
        return make_calibration(CalibrationFile.model_validate(content), f"points in {shown(path)}")
    except ValidationError as error:
        raise ConfigError(explain(error, CalibrationFile, from_value(content, shown(path)))) from None


def make_calibration(file: CalibrationFile, source: str) -> Calibration:
    """The points of what a file holds."""
    matmuls = (MatmulPoint(p.m, p.n, p.k, 2 * p.m * p.n * p.k / p.seconds, p.dtype, p.groups) for p in file.matmuls)
    attention = (AttentionPoint(p.direction, p.flops / p.seconds) for p in file.attention)
    collectives = (
        CollectivePoint(p.operation, p.ranks, min(p.ranks_per_node or p.ranks, p.ranks), p.bytes, p.seconds, p.groups)
        for p in file.collectives
    )
    largest = max(file.copies, key=lambda copy: copy.bytes, default=None)
    bandwidth, cores = largest.bytes / largest.seconds if largest else None, None
    if (found := file.processors) is not None:
        bandwidth = found.bytes_per_second or bandwidth
        host = found.operation_seconds, found.sharding_seconds, found.replication_seconds, found.message_seconds
        cores = Cores(found.cores, found.slowdown, *host)
    points = MeasuredPoints(source, tuple(matmuls), bandwidth, tuple(attention))
    return Calibration(file.device, points, tuple(collectives), file.memory_bytes, cores)


def _of_gpu_benchmark(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The points in results of `benchmarks/gpu`: of its ceilings alone, or of a part."""
    if content.get("dry"):
        raise ConfigError(f"{shown(path)}: is from a dry run on a CPU, not from a GPU; pass another file")
    try:
        if "figures" in content:
            device, ceilings = content["device"]["name"], content["ceilings"]
            rate, bandwidth = ceilings["bf16_flops_per_s"], ceilings["bytes_per_s"]
        else:
            device, rate, bandwidth = content["device"], content["matmul_flops"], content["bandwidth"]
        square = {"m": _WIDTH, "n": _WIDTH, "k": _WIDTH, "seconds": 2 * _WIDTH**3 / rate}
        grouped = [point for figure in content.get("figures", {}).values() if (point := _experts(figure))]
        copies = [{"bytes": _COPIED_BYTES, "seconds": _COPIED_BYTES / bandwidth}]
    except (KeyError, TypeError, AttributeError, ZeroDivisionError):
        raise ConfigError(
            f"{shown(path)}: looks like results of benchmarks/gpu, but its ceilings or figures have another format"
        ) from None
    return {"device": device, "matmuls": [square, *grouped], "copies": copies}


def _experts(figure: dict[str, Any]) -> dict[str, Any] | None:
    """The forward pass of a grouped matmul, of a figure that is one."""
    if (figure.get("kernel"), figure.get("implementation"), figure.get("status")) != ("experts", "grouped", "ok"):
        return None
    match = _EXPERTS.fullmatch(figure["size"])
    if match is None:
        return None
    rows, groups, num_out, num_in = map(int, match.groups())
    return {"m": rows, "n": num_out, "k": num_in, "groups": groups, "seconds": figure["forward"]["seconds"]}
