"""Training steps by PyTorch itself: FSDP2, DTensor and pipelining, as the model was laid out, and our optimizer."""

from collections.abc import Sequence
from typing import Self

from torch import Tensor

from glmforge.backend.global_batch import GlobalBatch
from glmforge.backend.objective import Objective
from glmforge.config.parameters import ParameterTable
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.kernels.choice import choose
from glmforge.model.dropout import Noise
from glmforge.optim.clip import clip_grad_norm_
from glmforge.optim.optimizer import Optimizer, build_optimizer
from glmforge.parallel.build import DTYPES, Extend, build_model
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World


class NativeBackend:
    """See `glmforge.backend.base.Backend`."""

    def __init__(self, model: ParallelModel, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    @classmethod
    def build(
        cls, config: RunConfig, world: World, *, table: ParameterTable | None = None, extend: Extend | None = None
    ) -> Self:
        """Model and optimizer of `config`, laid out on `world`; `table` and `extend` as in `build_model`."""
        model = build_model(config, world, table=table, extend=extend)
        # The optimizer computes in fp32 where the model does, so that layouts differ by rounding only.
        dtype = DTYPES[config.precision.compute]
        optimizer = build_optimizer(
            model.named_parameters(),
            model.table,
            config.optim,
            world=world,
            compute_dtype=dtype,
            seed=config.seed,
            kernels=choose(config.kernels, world.device, dtype),
        )
        return cls(model, optimizer)

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
