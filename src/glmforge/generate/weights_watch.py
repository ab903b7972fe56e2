"""Notices weights that were changed without a word: keys that were computed under the old ones are of no use then.

PyTorch counts the changes of each tensor in place, which costs microseconds to look at. Fused optimizers, `.data` and
libraries that write to memory count nothing, so once in a while an element of each tensor is compared as well.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class WeightsWatch:
    """Of the parameters and buffers that `model` has now."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = [weight for weight in _weights(model) if weight.numel()]
        self._counted = [weight for weight in self._weights if not weight.is_inference()]
        self._count, self._sample = self._num_changes(), self._middles()

    def differ(self, *, closely: bool) -> bool:
        """Whether they have been changed; a change that nothing has counted is only seen `closely`."""
        if self._num_changes() != self._count:
            return True
        return closely and not torch.equal(self._middles(), self._sample)

    def _num_changes(self) -> int:
        return sum(weight._version for weight in self._counted)

    @torch.no_grad()
    def _middles(self) -> Tensor:
        """An element of each, float64."""
        return torch.stack([weight[tuple(size // 2 for size in weight.shape)].double() for weight in self._weights])


def _weights(model: nn.Module) -> Iterable[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
