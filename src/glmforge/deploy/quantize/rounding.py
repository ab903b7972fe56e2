"""Weights rounded to 8 bits without calibration: fp8 (e4m3) by blocks, integers by output channels.

A scale is the largest magnitude of its block over the largest code, so nothing is clipped and what is lost is half a
step of the code. Each rounding is written in the published layout that both transformers (which packs the experts of a
layer, and decompresses on a CPU) and vLLM read: DeepSeek's for fp8, compressed-tensors' packed integers for int8.

Of each, `specs` are the tensors on disk of a matrix by the end of their names, of which the first takes the matrix's
own place; `encode` makes them of an fp32 matrix, `decode` the matrix of them; `error_bound` is the most that rounding
may change each weight; `settings` is `quantization_config`, where the linear modules `kept` are not rounded; `fix` says
what to do where no matrix `fits`. Shapes: O outputs and I inputs of a linear map.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.format.safetensors_stream import Spec

_FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
_INT8_MAX = 127
_PACKED = 4  # 8-bit codes in an int32


@dataclass(frozen=True)
class Fp8Blocks:
    """e4m3 with one fp32 scale for `block` x `block` weights, 128 in what engines have kernels for. Activations are
    rounded by the engine, one scale for `block` values of a token."""

    block: int = 128

    @property
    def fix(self) -> str:
        return f"no linear map has sides of multiples of {self.block}; choose a smaller --group-size"

    def fits(self, shape: tuple[int, ...]) -> bool:
        return all(size % self.block == 0 for size in shape)

    def specs(self, shape: tuple[int, ...]) -> dict[str, Spec]:
        grid = (shape[0] // self.block, shape[1] // self.block)
        return {"weight": (torch.float8_e4m3fn, shape), "weight_scale_inv": (torch.float32, grid)}

    def encode(self, weight_OI: Tensor) -> dict[str, Tensor]:
        blocks = self._blocks(weight_OI)
        scale = _scale(blocks.abs().amax(dim=(1, 3)), _FP8_MAX)
        codes = (blocks / scale[:, None, :, None]).clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)
        return {"weight": codes.reshape(weight_OI.shape), "weight_scale_inv": scale}

    def decode(self, stored: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
        scale = stored["weight_scale_inv"]
        return (self._blocks(stored["weight"].float()) * scale[:, None, :, None]).reshape(shape)

    def error_bound(self, weight_OI: Tensor, stored: Mapping[str, Tensor]) -> Tensor:
        # half a step of 3 bits of mantissa, or of a subnormal code
        smallest = stored["weight_scale_inv"][:, None, :, None] * 2.0**-10
        subnormal = (self._blocks(torch.ones(weight_OI.shape)) * smallest).reshape(weight_OI.shape)
        return torch.maximum(weight_OI.abs() * 2.0**-4, subnormal) * (1 + 1e-3)

    def settings(self, kept: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [self.block, self.block],
            "modules_to_not_convert": ["lm_head", *kept],
        }

    def _blocks(self, matrix_OI: Tensor) -> Tensor:
        return matrix_OI.unflatten(1, (-1, self.block)).unflatten(0, (-1, self.block))


@dataclass(frozen=True)
class Int8Channels:
    """8-bit integers with one bf16 scale for each output, four codes in an int32; activations keep their precision."""

    @property
    def fix(self) -> str:
        return f"no linear map has inputs of a multiple of {_PACKED}"

    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape[1] % _PACKED == 0

    def specs(self, shape: tuple[int, ...]) -> dict[str, Spec]:
        return {
            "weight_packed": (torch.int32, (shape[0], shape[1] // _PACKED)),
            "weight_scale": (torch.bfloat16, (shape[0], 1)),
            "weight_shape": (torch.int64, (2,)),
        }

    def encode(self, weight_OI: Tensor) -> dict[str, Tensor]:
        # Engines compute with the scale as it is stored, so codes are those of the rounded one.
        scale = _scale(weight_OI.abs().amax(dim=1, keepdim=True), _INT8_MAX).to(torch.bfloat16)
        codes = (weight_OI / scale.float()).round().clamp(-_INT8_MAX, _INT8_MAX)
        packed = (codes + 128).to(torch.uint8).view(torch.int32)
        return {"weight_packed": packed, "weight_scale": scale, "weight_shape": torch.tensor(weight_OI.shape)}

    def decode(self, stored: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
        codes = stored["weight_packed"].contiguous().view(torch.uint8).float() - 128
        return codes.reshape(shape) * stored["weight_scale"].float()

    def error_bound(self, weight_OI: Tensor, stored: Mapping[str, Tensor]) -> Tensor:
        return (stored["weight_scale"].float() / 2).expand(weight_OI.shape) * (1 + 1e-3)

    def settings(self, kept: Sequence[str]) -> dict[str, Any]:
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
        group = {"targets": ["Linear"], "weights": weights, "format": "pack-quantized"}
        return {
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "format": "pack-quantized",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head", "re:.*mlp\\.gate$", *kept],
        }


def _scale(largest: Tensor, code: float) -> Tensor:
    """1 where all weights are 0: any scale is right, but not 0."""
    return torch.where(largest > 0, largest / code, 1.0)


Rounding = Fp8Blocks | Int8Channels
