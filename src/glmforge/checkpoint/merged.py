"""Weights with adapters merged into them: W + scaling B A, of DoRA with its rows brought to their trained length.

Whoever reads a checkpoint of a run with adapters reads them so (`glmforge.checkpoint.pretrained`): exports, generation,
evaluations. Each weight is merged when it is asked for, in fp32, and experts one at a time, so no more than a weight
and one expert's product is in memory besides. What has no adapter comes as it lies there.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from glmforge.config.adapters import LinearMap, adapted_maps, adapter_parts
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table


class MergedWeights(Mapping[str, Tensor]):
    """The parameters and buffers of the model of `config` by name, from `tensors`, which has the adapters too.

    Attributes:
        apart: the tensors, adapters apart from what they adapt.
    """

    def __init__(self, tensors: Mapping[str, Tensor], config: ModelConfig, lora: LoraConfig) -> None:
        self.apart, self._lora = tensors, lora
        self._names = [name for name in parameter_table(config) if name in tensors]
        self._maps: dict[str, list[LinearMap]] = {}
        for one in adapted_maps(config, lora):
            self._maps.setdefault(one.row.name, []).append(one)

    def __getitem__(self, name: str) -> Tensor:
        weight = self.apart[name]
        if name not in self._maps:
            return weight
        merged = weight.float().clone()
        for one in self._maps[name]:
            self._merge(merged, one)
        return merged

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @torch.no_grad()
    def _merge(self, weight: Tensor, one: LinearMap) -> None:
        a, b, *magnitude = (self.apart[part.row.name].float() for part in adapter_parts(one, self._lora))
        if one.kind == "embedding":
            weight.addmm_(a.T, b.T, alpha=self._lora.scaling)
        elif one.kind == "experts":
            for of_expert, a_rJ, b_Or in zip(_rows_of(weight, one), a, b, strict=True):
                of_expert.addmm_(b_Or, a_rJ, alpha=self._lora.scaling)
        else:
            weight.addmm_(b, a, alpha=self._lora.scaling)
            for m_O in magnitude:
                weight.mul_((m_O / torch.linalg.vector_norm(weight, dim=1)).unsqueeze(1))


def _rows_of(weight_EOJ: Tensor, one: LinearMap) -> Tensor:
    """The map's own rows of the packed matrices."""
    if one.name == one.row.name:
        return weight_EOJ
    place = [part.removesuffix(".weight") for part in one.row.expert_parts].index(one.key)
    return weight_EOJ.narrow(1, place * one.num_outputs, one.num_outputs)
