"""A quantised weight as something to read into: it is given numbers, and keeps their codes and scales.

Readers bring a weight in blocks of rows, and what they bring is rounded at once (`glmforge.kernels.nf4`), so a rank
never holds more of the weight itself than a few blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.config.quantised import BLOCK, scale_name
from glmforge.kernels.nf4 import quantise
from glmforge.parallel.placement import local_chunk


@dataclass(frozen=True)
class QuantisedWeight:
    """The weight [.., J] of `codes` [.., J / 2] and `scales` [.., J / 64], plain or DTensors that are cut alike."""

    codes: Tensor
    scales: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the whole weight."""
        return torch.Size((*self.codes.shape[:-1], 2 * self.codes.shape[-1]))

    @property
    def dtype(self) -> torch.dtype:
        """That of the codes: what is read is of no type of the run's own."""
        return self.codes.dtype

    def part(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offsets and sizes of what this rank holds of the weight."""
        codes, offsets = local_chunk(self.codes)
        return (*offsets[:-1], 2 * offsets[-1]), (*codes.shape[:-1], 2 * codes.shape[-1])

    def write(self, index: Sequence[slice], values: Tensor) -> None:
        """Set the elements `index` of this rank's part, whole blocks of inputs, to `values`."""
        *outer, inputs = index
        codes, scales = quantise(values)
        for tensor, numbers, per in ((self.codes, codes, 2), (self.scales, scales, BLOCK)):
            assert inputs.start % per == 0, "blocks are whole"
            local_chunk(tensor)[0][(*outer, slice(inputs.start // per, inputs.stop // per))] = numbers


def with_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor | QuantisedWeight]:
    """`tensors` with a `QuantisedWeight` under the name of each weight whose codes and scales they have."""
    scales = {scale_name(name) for name in tensors if scale_name(name) in tensors}
    return {
        name: QuantisedWeight(tensor, tensors[scale_name(name)]) if scale_name(name) in scales else tensor
        for name, tensor in tensors.items()
        if name not in scales
    }
