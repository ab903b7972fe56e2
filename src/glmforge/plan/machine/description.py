"""A user's own device or network, described in a YAML file: read as what may come from anywhere.

    name: Our H100                        name: Our fabric
    bf16_tflops: 989                      gbits_per_gpu: 400        # or gbits_per_node, shared by its GPUs
    memory_gb: 80                         latency_us: 3
    memory_gb_per_s: 3350
    nvlink_gb_per_s: 900                  # both ways together, as data sheets have it; omitted: none

Figures are the maker's, for dense matrices: a sparse peak is twice what any run can use.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError, model_validator

from glmforge.config.explain import explain
from glmforge.config.model import Strict, refuse
from glmforge.config.tree import as_mapping, parse, to_value
from glmforge.errors import ConfigError
from glmforge.files import read_text
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.machine.network import GIGABIT, Network

_MAX_BYTES = 1 << 16
_NAME = Field(min_length=1, max_length=80, pattern=r"^[\w .,:/()+-]+$")
_Description = TypeVar("_Description", bound=Strict)


class AcceleratorDescription(Strict):
    """A device; bounds are ten times what any device has today."""

    name: str = _NAME
    bf16_tflops: float = Field(gt=0, le=50_000, description="dense bf16 TFLOP/s")
    fp8_tflops: float | None = Field(default=None, gt=0, le=100_000, description="dense fp8 TFLOP/s; default: no fp8")
    fp32_tflops: float | None = Field(
        default=None, gt=0, le=5_000, description="fp32 TFLOP/s without tensor cores; default: 1/16 of bf16"
    )
    memory_gb: float = Field(gt=0, le=10_000, description="device memory, 1 GB = 10^9 bytes")
    memory_gb_per_s: float = Field(gt=0, le=200_000, description="bandwidth of the device memory")
    nvlink_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        le=50_000,
        description="to the other devices of a node, both directions together; default: none",
    )
    power_w: float | None = Field(default=None, gt=0, le=50_000, description="watts at full load")
    processors: int | None = Field(default=None, gt=0, le=100_000, description="streaming multiprocessors")
    source: str = Field(default="described by the user", max_length=200)


class NetworkDescription(Strict):
    """The links of a node to the others."""

    name: str = _NAME
    gbits_per_gpu: float | None = Field(default=None, gt=0, le=100_000, description="of each GPU's own adapter")
    gbits_per_node: float | None = Field(default=None, gt=0, le=1_000_000, description="of one adapter for all GPUs")
    latency_us: float = Field(default=5.0, gt=0, le=1e6, description="of an empty message")
    source: str = Field(default="described by the user", max_length=200)

    @model_validator(mode="after")
    def _check_bandwidth(self) -> "NetworkDescription":
        if (self.gbits_per_gpu is None) == (self.gbits_per_node is None):
            refuse("gbits_per_gpu", "give gbits_per_gpu or gbits_per_node, one of the two, in Gb/s each way")
        return self


def is_file_name(name: str) -> bool:
    """Whether what a user named is a description's file rather than a known device or network."""
    return name.endswith((".yaml", ".yml"))


def read_accelerator(path: str | Path) -> Accelerator:
    """The device that a file describes. Raises `ConfigError` naming file, line, key and fix."""
    found = _read(AcceleratorDescription, path)
    return Accelerator(
        name=found.name,
        bf16_flops=found.bf16_tflops * 1e12,
        fp8_flops=None if found.fp8_tflops is None else found.fp8_tflops * 1e12,
        fp32_flops=(found.bf16_tflops / 16 if found.fp32_tflops is None else found.fp32_tflops) * 1e12,
        memory_bytes=int(found.memory_gb * 1e9),
        memory_bandwidth=found.memory_gb_per_s * 1e9,
        nvlink_bandwidth=None if found.nvlink_gb_per_s is None else found.nvlink_gb_per_s * 1e9 / 2,
        source=found.source,
        power=found.power_w,
        num_processors=found.processors,
    )


def read_network(path: str | Path) -> Network:
    """The network that a file describes. Raises `ConfigError` naming file, line, key and fix."""
    found = _read(NetworkDescription, path)
    gbits = found.gbits_per_gpu if found.gbits_per_node is None else found.gbits_per_node
    assert gbits is not None, "the description has one of the two"
    is_shared = found.gbits_per_node is not None
    return Network(found.name, gbits * GIGABIT, found.latency_us * 1e-6, is_shared, found.source)


def _read(cls: type[_Description], path: str | Path) -> _Description:
    text = read_text(Path(path), error=ConfigError, max_bytes=_MAX_BYTES)
    tree = as_mapping(parse(text, str(path)))
    try:
        return cls.model_validate(to_value(tree))
    except ValidationError as error:
        raise ConfigError(explain(error, cls, tree)) from None
