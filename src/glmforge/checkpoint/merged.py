"""Weights with adapters merged into them: W + scaling B A, of DoRA with its rows brought to their trained length.

All readers of a checkpoint with adapters read it this way (`glmforge.checkpoint.pretrained`): exports, generation,
evaluations. Each weight is merged when it is requested, in fp32, and experts one at a time, so no more than a weight
and one expert's product is in memory besides. What has no adapter comes as it lies in the base.

Shapes: E experts, r rank, J inputs and O outputs of a map.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glmforge.config.adapters import LinearMap, adapted_maps, adapter_parts
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import parameter_table


class MergedWeights(Mapping[str, Tensor]):
    """The parameters and buffers of the model of `config` by name.

    Args:
        adapters: adapters, and what was trained whole beside them.
        base: everything else.
    """

    def __init__(
        self, adapters: Mapping[str, Tensor], base: Mapping[str, Tensor], config: ModelConfig, lora: LoraConfig
    ) -> None:
        self._adapters, self._base, self._lora = adapters, base, lora
        self._names = [name for name in parameter_table(config) if name in adapters or name in base]
        self._maps = maps_by_row(config, lora)

    def __getitem__(self, name: str) -> Tensor:
        if name in self._adapters:
            return self._adapters[name]
        weight = self._base[name]
        if name not in self._maps:
            return weight
        merged = weight.float().clone()
        for one in self._maps[name]:
            factors = [self._adapters[part.row.name].float() for part in adapter_parts(one, self._lora)]
            add_adapter(merged, one, factors, self._lora.scaling)
        return merged

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def maps_by_row(config: ModelConfig, lora: LoraConfig) -> dict[str, list[LinearMap]]:
    """Name of a parameter -> its maps that are adapted."""
    found: dict[str, list[LinearMap]] = {}
    for one in adapted_maps(config, lora):
        found.setdefault(one.row.name, []).append(one)
    return found


@torch.no_grad()
def add_adapter(
    weight: Tensor, one: LinearMap, factors: Sequence[Tensor], scaling: float, index: tuple[Any, ...] = ()
) -> None:
    """Merge the adapter of a map into `weight`, in place, all in fp32.

    Args:
        weight: the map's parameter, or of packed experts the part `index` of it: an expert, and some of its rows.
        factors: A [r, J] and B [O, r], with DoRA the magnitudes [O]; of experts [E, r, J] and [E, O, r].
    """
    a, b, *magnitude = factors
    if one.kind == "embedding":
        weight.addmm_(a.T, b.T, alpha=scaling)
    elif one.kind == "experts":
        experts = [(weight, index)] if index else [(w, (e, slice(0, len(w)))) for e, w in enumerate(weight)]
        for rows_OJ, (expert, rows) in experts:
            _add_to_expert(rows_OJ, one, a[expert], b[expert], scaling, rows)
    else:
        weight.addmm_(b, a, alpha=scaling)
        for m_O in magnitude:
            weight.mul_((m_O / torch.linalg.vector_norm(weight, dim=1)).unsqueeze(1))


def first_row(one: LinearMap) -> int:
    """Where the map's own rows begin in those of its parameter."""
    parts = [part.removesuffix(".weight") for part in one.row.expert_parts]
    return parts.index(one.key) * one.num_outputs if one.key in parts else 0


def _add_to_expert(weight: Tensor, one: LinearMap, a_rJ: Tensor, b_Or: Tensor, scaling: float, rows: slice) -> None:
    """`weight` is `rows` of one expert's packed matrix."""
    first = first_row(one)
    start, stop = max(rows.start, first), min(rows.stop, first + one.num_outputs)
    if start < stop:
        weight[start - rows.start : stop - rows.start].addmm_(b_Or[start - first : stop - first], a_rJ, alpha=scaling)
