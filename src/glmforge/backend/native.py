"""Training steps by PyTorch itself: FSDP2, DTensor and pipelining, as the model was laid out, and our optimizer."""

from collections.abc import Sequence

from torch import Tensor

from glmforge.backend.global_batch import GlobalBatch
from glmforge.backend.objective import Objective
from glmforge.data.stream.batch import Batch
from glmforge.model.dropout import Noise
from glmforge.optim.clip import clip_grad_norm_
from glmforge.optim.optimizer import Optimizer
from glmforge.parallel.model import ParallelModel


class NativeBackend:
    """See `glmforge.backend.base.Backend`."""

    def __init__(self, model: ParallelModel, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def accumulate(
        self, objective: Objective, micro_batches: Sequence[Batch], noise: Noise | None = None
    ) -> GlobalBatch:
        batch = GlobalBatch(self.model, objective, micro_batches, noise)
        self.model.run(batch.run, len(micro_batches), batch.shape, num_mtp=objective.num_mtp, backward=True)
        self.model.finish_gradients()
        return batch

    def clip(self, max_norm: float | None) -> Tensor:
        return clip_grad_norm_(self.model.parameters(), max_norm, self.model.world)

    def step(self, lr: float) -> None:
        self.optimizer.set_lr(lr)
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def state_tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return tensors | {f"optim.{name}": tensor for name, tensor in self.optimizer.state_dict().items()}
