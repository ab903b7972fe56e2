"""Which maps of the model multiply 8-bit numbers: `precision.low_precision` and `precision.low_precision_maps`.

Masters, router, norms, attention itself, the projection before an MTP layer, embedding and head keep their precision.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from glmforge.config.parallel import LowPrecisionMap, PrecisionConfig
from glmforge.errors import ConfigError
from glmforge.kernels.fp8 import MULTIPLE, MX_BLOCK, fp8_linear
from glmforge.model.block import DecoderLayer
from glmforge.model.layers import Linear
from glmforge.model.moe import Experts, MoE

_CAPABILITIES = (9, 10)  # those of torch._scaled_grouped_mm; major numbers


class Fp8Matmul:
    """A `Matmul` with forward product and input gradient in e4m3; see `glmforge.kernels.fp8`."""

    def __init__(self, block_size: int | None) -> None:
        self.block_size = block_size

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        """Raises `ConfigError` for widths that are not multiples of what the format needs."""
        multiple, widths = self.block_size or MULTIPLE, list(weight.shape[-2:])
        if any(width % multiple for width in widths):
            raise ConfigError(
                f"precision.low_precision: a weight is {widths} on each rank, but must be a multiple of {multiple}; "
                "choose another parallel.tp, or remove its layer from precision.low_precision_maps"
            )
        return fp8_linear(x, weight, bias=bias, counts_E=counts_E, block_size=self.block_size)


def lower_precision(layer: DecoderLayer, precision: PrecisionConfig) -> None:
    """Replace the matmuls of a layer's maps that take part, in place. To be called before anything adapts them."""
    if precision.low_precision == "none":
        return
    matmul = Fp8Matmul(MX_BLOCK if precision.low_precision == "mxfp8_emulated" else None)
    for name, part in _parts(layer):
        if name not in precision.low_precision_maps:
            continue
        if isinstance(part, Experts):
            part.gate_up_matmul = part.down_matmul = matmul
        for child in part.children():
            if isinstance(child, Linear):
                child.matmul = matmul


def check_device(device: torch.device, precision: PrecisionConfig) -> None:
    """Raise `ConfigError` where the GPU has no fp8 products."""
    if precision.low_precision == "fp8" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability[0] not in _CAPABILITIES:
            raise ConfigError(
                "precision.low_precision: fp8 needs a GPU of compute capability 9 or 10 (H100, H200, B200), but this "
                f"one has {capability[0]}.{capability[1]}; set it to none"
            )


def _parts(layer: DecoderLayer) -> Iterator[tuple[LowPrecisionMap, nn.Module]]:
    yield "attention", layer.self_attn
    if isinstance(layer.mlp, MoE):
        yield "experts", layer.mlp.experts
        yield "shared_experts", layer.mlp.shared_experts
    else:
        yield "dense_mlp", layer.mlp
