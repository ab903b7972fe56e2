"""Which implementation of each operation is used: decided when a run's model is built, and carried by its modules.

A configuration names an implementation or says "auto". `choose` replaces every "auto": by what a committed measurement
on this type of device found fastest (`measured.toml`), else by the plain implementation, or for attention and experts
by what suits device and type. A named implementation that cannot run here is an error, never replaced by another one.

The choice is then an attribute `kernels` of every module that has one (`ChoosesKernels`, `GlmMoe.set_kernels`), and
nothing is looked up elsewhere: two models in one process may differ.

`scripts/kernel_choices.py` writes `measured.toml` from the results of the kernel benchmark on a GPU.
"""

import functools
import importlib.util
import tomllib
from collections.abc import Mapping
from importlib import resources

import torch

from glmforge.config.kernels import KernelsConfig
from glmforge.errors import ConfigError
from glmforge.kernels import flash3
from glmforge.kernels.target import automatic, kernel_device

UNMEASURED = KernelsConfig(
    router="plain",
    permute="plain",
    swiglu="plain",
    rms_norm="plain",
    qk_rope="plain",
    cross_entropy="plain",
    symmetric_matmul="plain",
)
"""What modules begin with: plain implementations; attention and experts go by the tensors they meet."""

_CUDA_ONLY = frozenset({"triton", "flex", "varlen", "flash3"})


class ChoosesKernels:
    """A base of modules that compute something in more than one way; `kernels` says in which."""

    kernels: KernelsConfig = UNMEASURED


def choose(kernels: KernelsConfig, device: torch.device, dtype: torch.dtype) -> KernelsConfig:
    """`kernels` with a name in the place of every "auto", for a run on `device` that computes in `dtype`.

    Raises `ConfigError` for a name that cannot be used there.
    """
    device_type = kernel_device(device)
    measured = fastest_on(torch.cuda.get_device_name(device)) if device.type == "cuda" else {}
    chosen = kernels.model_dump()
    for operation, name in chosen.items():
        if name == "auto":
            chosen[operation] = measured.get(operation) or automatic(operation, device_type, dtype)
        _check(operation, chosen[operation], device_type, dtype)
    return KernelsConfig(**chosen)


def fastest_on(device_name: str) -> Mapping[str, str]:
    """Operation -> implementation that was measured to be the fastest on devices of this name; empty if none was."""
    return {operation: entry["implementation"] for operation, entry in _measurements().get(device_name, {}).items()}


@functools.cache
def _measurements() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(resources.files("glmforge.kernels").joinpath("measured.toml").read_text(encoding="utf-8"))


def _check(operation: str, name: str, device_type: str, dtype: torch.dtype) -> None:
    if name == "triton" and importlib.util.find_spec("triton") is None:
        raise ConfigError(
            f"kernels.{operation}: 'triton' needs the package 'triton', which is not installed: pip install "
            "'triton>=3.6', or set it to plain"
        )
    if name in _CUDA_ONLY and device_type != "cuda" and not (name == "triton" and interpreted()):
        raise ConfigError(
            f"kernels.{operation}: '{name}' needs a CUDA device, and this run's is {device_type}; set it to auto"
        )
    if name in ("varlen", "flash3") and dtype.itemsize != 2:
        raise ConfigError(f"kernels.{operation}: '{name}' needs precision.compute: bf16; set it to auto")
    if name == "flash3" and not flash3.is_installed():
        raise ConfigError(
            f"kernels.{operation}: 'flash3' needs FlashAttention 3 (the package '{flash3.PACKAGE}', built from "
            "flash-attention's folder hopper), which is not installed; set it to varlen"
        )


def interpreted() -> bool:
    """Whether Triton's kernels are run by its interpreter, on the CPU (the environment variable TRITON_INTERPRET)."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)
