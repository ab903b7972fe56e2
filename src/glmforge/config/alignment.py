"""Widths that a GPU's kernels can work on.

CUDA's grouped matrix product, which runs the experts, wants rows that begin at multiples of 16 bytes, and
FlashAttention heads of a multiple of 8 numbers. Both say so only when they are called, in words that name no field.
Tensor parallelism changes none of these widths: it cuts heads and dense layers, and experts lie whole on a rank.
"""

from typing import Literal

from glmforge.config.kernels import KernelsConfig
from glmforge.config.model import ModelConfig
from glmforge.errors import ConfigError

_BYTES = {"bf16": 2, "fp32": 4}
_ROW_BYTES = 16
_HEAD_MULTIPLE = 8


def check_cuda_widths(model: ModelConfig, compute: Literal["bf16", "fp32"], kernels: KernelsConfig) -> None:
    """Raises ConfigError, naming field, value and the nearest that will do, for a width that CUDA kernels refuse.

    `kernels` has a name in the place of every "auto".
    """
    if kernels.experts == "grouped":
        multiple = _ROW_BYTES // _BYTES[compute]
        for field in ("hidden_size", "moe_intermediate_size"):
            _check(model, field, multiple, f"the grouped matrix product of the experts wants in {compute} on a GPU")
    if kernels.attention in ("varlen", "flash3"):
        _check(model, "head_dim", _HEAD_MULTIPLE, "FlashAttention wants on a GPU")


def _check(model: ModelConfig, field: str, multiple: int, who: str) -> None:
    width: int = getattr(model, field)
    if width % multiple:
        above = width + -width % multiple
        nearest = f"{above - multiple} or {above}" if above > multiple else f"{above}"
        raise ConfigError(f"model.{field}: {width} is not a multiple of {multiple}, which {who}; set it to {nearest}")
