"""The interface of what carries out a training step.

A backend owns the sharded model and its optimizer; trainer and hooks reach them only through it. The step
(`glmforge.training.step`) calls it in this order: `accumulate`, `clip`, `step` unless something is not finite,
`zero_grad`. All ranks call all of it together.

What a backend does in its own way is when gradients are summed over ranks and where optimizer states lie. What the
batch adds up to is the same for all (`GlobalBatch`): a backend only hands `GlobalBatch.run` to its engine.

DeepSpeed's ZeRO (`glmforge.backend.deepspeed`) keeps weights and states in pieces of its own: what it gives of them are
copies, which `restore` brings back.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from glmforge.backend.global_batch import GlobalBatch
from glmforge.backend.objective import Objective
from glmforge.config.parameters import ParameterTable
from glmforge.data.stream.batch import Batch
from glmforge.model.dropout import Noise
from glmforge.model.router import Balance
from glmforge.optim.sharding import Chunk
from glmforge.parallel.world import World


class Backend(Protocol):
    """Carries out training steps on a model with its optimizer, and gives hooks what they look at.

    Attributes:
        world: the ranks that the model is laid out on.
        table: declares the model's parameters.
    """

    @property
    def world(self) -> World: ...

    @property
    def table(self) -> ParameterTable: ...

    def train(self) -> None:
        """Put the model in training mode."""
        ...

    def begin_phase(self, *, rope_theta: float | None, capacity_factor: float | None, balance: Balance) -> None:
        """Set the model to what a phase asks for; see `glmforge.training.source.Phase`."""
        ...

    def accumulate(
        self, objective: Objective, micro_batches: Sequence[Batch], noise: Noise | None = None
    ) -> GlobalBatch:
        """Forward and backward of this rank's share of a global batch: adds the whole gradient to the parameters'.

        `noise` is what dropout draws from in this step.
        """
        ...

    def clip(self, max_norm: float | None) -> Tensor:
        """Scale the gradient to a norm of at most `max_norm` (None: not at all); its norm before, an fp32 scalar."""
        ...

    def step(self, lr: float) -> None:
        """Update the parameters with the gradient they have."""
        ...

    def zero_grad(self) -> None:
        """Forget the gradient."""
        ...

    def balance_routers(self, counts_LE: Tensor, rate: float) -> None:
        """Move every router's correction bias against its global load; `counts_LE` are in the order of the layers.

        Layers that did not run (MTP with weight 0) have no counts and keep their bias.
        """
        ...

    def router_biases(self) -> dict[int, Tensor]:
        """The live correction biases of this rank's routers by their number among all, MTP layers last."""
        ...

    def local_chunks(self) -> Iterator[Chunk]:
        """This rank's parts of the trained parameters, with their gradients."""
        ...

    def grad_norms(self) -> Tensor:
        """fp32 [layers]: the L2 norm of each layer's gradient over all ranks, MTP layers last. All ranks call this
        together."""
        ...

    def evaluating(self) -> AbstractContextManager[Any]:
        """The model in evaluation mode, as the evaluations and rollouts of this backend take it; afterwards it is as
        before. The native backend gives its `ParallelModel`."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Published name -> parameter or buffer, live or a copy, those that this rank has (a part of). Collective."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds under flat names: `model.<parameter or buffer>`, `optim.<state>`. Collective."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what was loaded into those of `state_tensors` that are given. Collective."""
        ...
