"""What a module asks when several devices compute a layer together. The answers here are those of one device.

A module states its mathematics once and queries two things, so that no way of sharing a layer needs modules of its own:

- `local(weight)`: this device's part of a parameter. A parameter that is cut says so itself, by being a DTensor.
- a `Region` around the maps that the devices compute together: what moves between devices on the way in and out.

How a map multiplies by its weight is a third matter, `glmforge.model.layers.Matmul`, and knows of neither.
`glmforge.parallel` puts other regions and vocabularies in the place of these.

Shapes: T tokens, V rows of the vocabulary on this device.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from glmforge.kernels.cross_entropy import VocabularyShard


def local(weight: Tensor) -> Tensor:
    """This device's part of a parameter inside a forward pass: differentiable, the gradient again a part of the whole.

    A parameter that is not cut over tp or ep is its own part.
    """
    return weight.to_local() if isinstance(weight, DTensor) else weight


def sum_over_inputs(values: Tensor, weight: Tensor) -> Tensor:
    """The sum over the devices that the inputs of `weight` [out, in] are cut over, where they are; no gradient flows
    through it. `values` is changed."""
    if isinstance(weight, DTensor) and weight.placements == (Shard(1),):
        dist.all_reduce(values, group=weight.device_mesh.get_group())
    return values


def first_column(weight: Tensor) -> int:
    """The number of the first column, of all of `weight` [rows, columns], that lies on this device."""
    if isinstance(weight, DTensor) and weight.placements == (Shard(1),):
        return weight.device_mesh.get_local_rank() * weight.to_local().shape[1]
    return 0


class Region:
    """A part of the forward pass that one device computes alone: nothing moves on the way in and out."""

    def enter(self, x: Tensor) -> Tensor:
        """What the maps inside read, from what the device has outside."""
        return x

    def leave(self, partial: Tensor) -> Tensor:
        """What the device has outside, from its part of the sum that the maps inside computed."""
        return partial


class Vocabulary:
    """A vocabulary whose rows, of the embedding or of the head, all lie on one device.

    `num_rows` is V in every method.
    """

    def rows(self, ids_T: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """The local row of every token id, or any row, and where that is so (bool): negative ids."""
        return ids_T.clamp(min=0), ids_T < 0

    def shard(self, num_rows: int) -> VocabularyShard | None:
        """Which part of the vocabulary the rows are and how to reduce over all parts; None for the whole."""
        return None

    def own(self, values_T: Tensor) -> Tensor:
        """Those of the device's own tokens, of values for all tokens that all devices have alike; differentiable."""
        return values_T

    def whole(self, logits_LV: Tensor) -> Tensor:
        """Logits over the whole vocabulary, given those of the local rows."""
        return logits_LV

    def likeliest(self, logits_T: Tensor, rows_T: Tensor, num_rows: int) -> Tensor:
        """The token id with the largest logit, given the largest logit of the local rows and its row."""
        return rows_T


ONE_DEVICE = Region()
WHOLE_VOCABULARY = Vocabulary()
