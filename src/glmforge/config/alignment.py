"""Widths that a GPU's kernels can work on.

CUDA's grouped matrix product, which runs the experts, needs rows that begin at multiples of 16 bytes, and
FlashAttention heads of a multiple of 8 numbers. Both say so only when they are called, in words that name no field.
Tensor parallelism changes none of these widths: it cuts heads and dense layers, and experts lie whole on a rank.
"""

from typing import Literal

from glmforge.config.adapters import adapted_maps
from glmforge.config.kernels import KernelsConfig
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.errors import ConfigError

_BYTES = {"bf16": 2, "fp32": 4}
_ROW_BYTES = 16
_HEAD_MULTIPLE = 8


def check_cuda_widths(
    model: ModelConfig, compute: Literal["bf16", "fp32"], kernels: KernelsConfig, lora: LoraConfig | None = None
) -> None:
    """Raises ConfigError, naming field, value and the nearest that will do, for a width that CUDA kernels refuse.

    `kernels` has a name in the place of every "auto".
    """
    if kernels.experts == "grouped":
        multiple = _ROW_BYTES // _BYTES[compute]
        who = f"the grouped matrix product of the experts wants in {compute} on a GPU"
        for field in ("hidden_size", "moe_intermediate_size"):
            _check(f"model.{field}", getattr(model, field), multiple, who)
        if lora is not None and any(one.kind == "experts" for one in adapted_maps(model, lora)):
            _check("lora.rank", lora.rank, multiple, who)
    if kernels.attention in ("varlen", "flash3"):
        _check("model.head_dim", model.head_dim, _HEAD_MULTIPLE, "FlashAttention wants on a GPU")


def _check(field: str, width: int, multiple: int, who: str) -> None:
    if width % multiple:
        above = width + -width % multiple
        nearest = f"{above - multiple} or {above}" if above > multiple else f"{above}"
        raise ConfigError(f"{field}: {width} is not a multiple of {multiple}, which {who}; set it to {nearest}")
