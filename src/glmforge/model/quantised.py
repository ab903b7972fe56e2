"""Codes and scales in the place of frozen weights (`glmforge.config.quantised`), and the `Matmul` that reads them."""

import torch
from torch import Tensor, nn

from glmforge.config.parameters import ParameterTable
from glmforge.config.quantised import scale_name
from glmforge.kernels.nf4 import nf4_linear
from glmforge.model.layers import Linear
from glmforge.model.moe import Experts
from glmforge.model.placement import local
from glmforge.model.transformer import GlmMoe


class Nf4Matmul:
    """A `Matmul` by the weight whose codes it is given; the scales are the parameter `scales` of `owner`."""

    def __init__(self, owner: Linear | Experts, scales: str) -> None:
        self.owner, self.scales = owner, scales

    def __call__(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        scales = local(getattr(self.owner, self.scales))
        implementation = self.owner.kernels.experts if isinstance(self.owner, Experts) else "auto"
        return nf4_linear(x, weight, scales, bias=bias, counts_E=counts_E, implementation=implementation)


def quantise_maps(section: GlmMoe, table: ParameterTable) -> None:
    """Replace the weights of the section (on the meta device) that have rows of codes, in place. To be called before
    anything adapts the maps."""
    for name, _ in list(section.named_parameters()):
        if table[name].dtype == "uint8":
            path, _, attribute = name.rpartition(".")
            owner, scales = section.get_submodule(path), scale_name(attribute)
            _register(owner, attribute, table[name].shape, torch.uint8)
            _register(owner, scales, table[scale_name(name)].shape, torch.bfloat16)
            if isinstance(owner, Linear):
                owner.matmul = Nf4Matmul(owner, scales)
            else:
                assert isinstance(owner, Experts), f"{name}: is not the weight of a linear layer"
                setattr(owner, attribute.replace("_proj", "_matmul"), Nf4Matmul(owner, scales))


def _register(owner: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    owner.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))
