"""Training steps by DeepSpeed: ZeRO-1, -2 and -3, with optimizer and parameters in host memory or on NVMe.

The optimizer is DeepSpeed's, with our parameter groups. The learning rate, clipping, the decision whether a step is
taken and the balance of the experts stay ours, so the mathematics is that of the native backend.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.utils import safe_get_full_grad
from torch import Tensor

from glmforge.backend.deepspeed.engine import PARAMETERS_CUT, ZeroModel, build_engine, set_lr
from glmforge.backend.deepspeed.state import ZeroState
from glmforge.backend.global_batch import GlobalBatch
from glmforge.backend.objective import Objective
from glmforge.config.parameters import ParameterTable
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.errors import ConfigError
from glmforge.model.dropout import Noise
from glmforge.model.router import Balance
from glmforge.optim.balance import update_router_bias
from glmforge.optim.sharding import Chunk
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.world import World


class DeepSpeedBackend:
    """See `glmforge.backend.base.Backend`."""

    def __init__(self, model: ZeroModel) -> None:
        self.model, self.engine = model, model.engine
        self.state = ZeroState(model)
        self._has_stepped = False

    @classmethod
    def build(cls, config: RunConfig, world: World, settings: Mapping[str, Any]) -> Self:
        """Model and optimizer of `config` under DeepSpeed's `settings`. Collective."""
        backend = cls(build_engine(config, world, settings))
        backend.state.initialize(config.seed)
        return backend

    @property
    def world(self) -> World:
        return self.model.world

    @property
    def table(self) -> ParameterTable:
        return self.model.table

    def train(self) -> None:
        self.engine.train()

    def begin_phase(self, *, rope_theta: float | None, capacity_factor: float | None, balance: Balance) -> None:
        self.model.set_rope_theta(rope_theta or self.model.config.rope_theta)
        self.model.set_capacity_factor(capacity_factor)
        self.model.set_balance(balance)

    def accumulate(
        self, objective: Objective, micro_batches: Sequence[Batch], noise: Noise | None = None
    ) -> GlobalBatch:
        batch = GlobalBatch(self.model, objective, micro_batches, noise)
        self._has_stepped = False
        self.model.run(batch.run, len(micro_batches), batch.shape, num_mtp=objective.num_mtp, backward=True)
        return batch

    def clip(self, max_norm: float | None) -> Tensor:
        """Measures the norm; the gradient is scaled by the engine in the step that follows, by the same formula."""
        zero = self.engine.optimizer
        zero.clip_grad = max_norm or 0.0
        if self.engine.zero_optimization_stage() == PARAMETERS_CUT:
            norm = combine_grad_norm_groups(zero._get_norm_groups())
        else:
            norm = zero.scaled_global_norm()
        norm = torch.as_tensor(norm, dtype=torch.float32, device=self.world.device)
        return torch.where(norm >= 0, norm, torch.inf)  # -1 is DeepSpeed's word for inf and nan

    def step(self, lr: float) -> None:
        set_lr(self.engine.optimizer.param_groups, lr)
        self.engine.step()
        self._has_stepped = True

    def zero_grad(self) -> None:
        if not self._has_stepped:
            self.state.forget_gradients()

    @torch.no_grad()
    def balance_routers(self, counts_LE: Tensor, rate: float) -> None:
        for number, bias_E in self.router_biases().items():
            if number < len(counts_LE):
                update_router_bias(bias_E, counts_LE[number], rate)

    def router_biases(self) -> dict[int, Tensor]:
        return {number: moe.gate.e_score_correction_bias for number, moe in self.model.moe_layers().items()}

    def local_chunks(self) -> Iterator[Chunk]:
        raise ConfigError("backend: deepspeed keeps gradients in partitions of its own; set backend: native")

    @torch.no_grad()
    def grad_norms(self) -> Tensor:
        config = self.model.config
        squares_L = torch.zeros(config.num_hidden_layers + config.num_nextn_predict_layers, device=self.world.device)
        for name, parameter in self.model.named_parameters():
            layer = self.table[name].layer
            if layer is not None and parameter.requires_grad:
                squares_L[layer] += safe_get_full_grad(parameter).float().square().sum()
        return squares_L.sqrt()

    @contextmanager
    def evaluating(self) -> Iterator[ParallelModel]:
        with self.model.evaluating():
            yield self.model

    def weights(self) -> dict[str, Tensor]:
        return self.state.weights()

    def state_tensors(self) -> dict[str, Tensor]:
        return self.state.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.state.write(tensors)

    def held_bytes(self) -> tuple[int, int, int]:
        return self.state.held_bytes()
