"""What a training step asks of whoever carries it out.

A backend owns the sharded model and its optimizer. The step (`glmforge.training.step`) calls it in this order:
`accumulate`, `clip`, `step` unless something is not finite, `zero_grad`. All ranks call all of it together.

What a backend does in its own way is when gradients are summed over ranks and where optimizer states lie. What the
batch adds up to is the same for all (`GlobalBatch`): a backend only hands `GlobalBatch.run` to its engine.

DeepSpeed's ZeRO fits so. `accumulate` calls `engine.set_gradient_accumulation_boundary(is_last)`, `batch.run` and
`engine.backward(loss)` for each micro-batch; ZeRO sums and partitions gradients in its backward hooks. It averages over
data ranks and divides by accumulation steps where `GlobalBatch` has already divided by global denominators, so the loss
is multiplied by both. `clip` measures the norm of the partitions and scales them, with the engine's own clipping
configured off, so that the caller can leave out a step before `engine.step()` is called; `step` sets the learning rate
in the groups of `engine.optimizer` first. `zero_grad` clears what the engine has not cleared itself in `step`.
`state_tensors` gives ZeRO's flat partitions cut by published names.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from glmforge.backend.global_batch import GlobalBatch
from glmforge.backend.objective import Objective
from glmforge.data.stream.batch import Batch
from glmforge.model.dropout import Noise
from glmforge.optim.optimizer import Optimizer
from glmforge.parallel.model import ParallelModel


class Backend(Protocol):
    """Carries out training steps on `model` with `optimizer`."""

    @property
    def model(self) -> ParallelModel: ...

    @property
    def optimizer(self) -> Optimizer: ...

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

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint holds, live, under flat names: `model.<parameter or buffer>`, `optim.<state>`."""
        ...
