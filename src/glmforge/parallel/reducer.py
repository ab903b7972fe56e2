"""Small numbers of several users, summed over all ranks in one collective and brought to the host in one transfer.

A step has many of them: numerators of the loss, metrics, votes, anything a hook needs from all ranks. Each alone
would cost a collective, and reading it a wait for the device; a step affords one of each.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from glmforge.kernels.transfer import on_device
from glmforge.parallel.world import World


class Reducer:
    """Collects named float64 vectors until `sum`. All ranks add the same names with the same lengths, in one order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._vectors: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor | Sequence[float]) -> None:
        """Have `values` [n] summed over all ranks by the next `sum`."""
        assert name not in self._vectors, f"two vectors are named {name}"
        self._vectors[name] = on_device(values, self.world.device, torch.float64)

    def sum(self) -> dict[str, Tensor]:
        """The vectors summed over all ranks, on the device; forgets them. All ranks call this together."""
        vectors, self._vectors = self._vectors, {}
        if not vectors:
            return {}
        total = self.world.sum(torch.cat(list(vectors.values())))
        return dict(zip(vectors, total.split([len(vector) for vector in vectors.values()]), strict=True))


def read_together(
    tensors: Mapping[str, Tensor], to_host: Callable[[Tensor], list[float]] = Tensor.tolist
) -> dict[str, list[float]]:
    """The elements of all `tensors` by name, in one transfer and one wait for the device.

    `to_host` brings a flat float64 tensor to the host.
    """
    flat = [tensor.detach().double().flatten() for tensor in tensors.values()]
    numbers = iter(to_host(torch.cat(flat)))
    return {name: [next(numbers) for _ in range(len(part))] for name, part in zip(tensors, flat, strict=True)}
