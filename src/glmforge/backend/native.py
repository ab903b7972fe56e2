"""Training steps by PyTorch itself: FSDP2, DTensor and pipelining, as the model was laid out, and our optimizer."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor

from glmforge.backend.global_batch import GlobalBatch
from glmforge.backend.objective import Objective
from glmforge.config.parameters import ParameterTable
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.kernels.choice import choose
from glmforge.model.dropout import Noise
from glmforge.model.router import Balance
from glmforge.optim.balance import update_router_bias
from glmforge.optim.clip import clip_grad_norm_
from glmforge.optim.optimizer import Optimizer, build_optimizer
from glmforge.optim.sharding import Chunk, chunks_of
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

    @property
    def world(self) -> World:
        return self.model.world

    @property
    def table(self) -> ParameterTable:
        return self.model.table

    def train(self) -> None:
        self.model.train()

    def begin_phase(self, *, rope_theta: float | None, capacity_factor: float | None, balance: Balance) -> None:
        self.model.set_rope_theta(rope_theta or self.model.config.rope_theta)
        self.model.set_capacity_factor(capacity_factor)
        self.model.set_balance(balance)

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

    @torch.no_grad()
    def balance_routers(self, counts_LE: Tensor, rate: float) -> None:
        for number, bias_E in self.router_biases().items():
            if number < len(counts_LE):
                update_router_bias(bias_E, counts_LE[number], rate)

    def router_biases(self) -> dict[int, Tensor]:
        return {number: moe.gate.e_score_correction_bias for number, moe in self.model.moe_layers().items()}

    def local_chunks(self) -> Iterator[Chunk]:
        return chunks_of(self.model.named_parameters(), self.world.layout)

    @torch.no_grad()
    def grad_norms(self) -> Tensor:
        """Parts that several ranks hold count once, as in `glmforge.optim.clip.global_norm`; one sum serves all
        layers."""
        config, parts = self.model.config, defaultdict[tuple[int, int], list[Tensor]](list)
        for chunk in self.local_chunks():
            layer = self.table[chunk.name].layer
            if layer is not None and chunk.grad is not None:
                parts[layer, chunk.copies].append(chunk.grad)
        num_layers = config.num_hidden_layers + config.num_nextn_predict_layers
        squares_L = torch.zeros(num_layers, device=self.world.device)
        for (number, copies), gradients in parts.items():
            norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32))
            squares_L[number] += (norms.square().sum() / copies).to(self.world.device)
        return self.world.sum(squares_L).sqrt()

    @contextmanager
    def evaluating(self) -> Iterator[ParallelModel]:
        with self.model.evaluating():
            yield self.model

    def weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def state_tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in self.weights().items()}
        return tensors | {f"optim.{name}": tensor for name, tensor in self.optimizer.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing to do: `state_tensors` are live."""
