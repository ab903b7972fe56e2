"""Training steps by DeepSpeed: ZeRO-1, -2 and -3, with optimizer and parameters in host memory or on NVMe.

The optimizer is DeepSpeed's, with our parameter groups. Learning rate, clipping, the decision whether a step is taken
and the balance of the experts are the native backend's, and so is all that is not here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self, cast

import torch
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.utils import safe_get_full_grad
from torch import Tensor

from glmforge.backend.deepspeed.engine import build_model
from glmforge.backend.deepspeed.optimizer import ZeroOptimizer
from glmforge.backend.native import NativeBackend
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.optim.sharding import Chunk
from glmforge.parallel.world import World


class DeepSpeedBackend(NativeBackend):
    """See `glmforge.backend.base.Backend`."""

    optimizer: Any  # a ZeroOptimizer: of ours it has what a backend uses

    @classmethod
    def build_under(cls, settings: Mapping[str, Any], config: RunConfig, world: World) -> Self:
        """Model and optimizer of `config` under DeepSpeed's `settings`. Collective."""
        model = build_model(config, world, settings)
        optimizer = ZeroOptimizer(model)
        optimizer.initialize(config.seed)
        return cls(model, cast(Any, optimizer))

    def clip(self, max_norm: float | None) -> Tensor:
        """Measures the norm; the gradient is scaled by the engine in the step that follows, by the same formula."""
        zero = self.optimizer.zero
        zero.clip_grad = max_norm or 0.0
        cut = self.optimizer.cuts_parameters
        norm = combine_grad_norm_groups(zero._get_norm_groups()) if cut else zero.scaled_global_norm()
        norm = torch.as_tensor(norm, dtype=torch.float32, device=self.world.device)
        return norm.where(norm >= 0, torch.inf)  # -1 is DeepSpeed's word for inf and nan

    def local_chunks(self) -> Iterator[Chunk]:
        raise ConfigError("backend: deepspeed keeps gradients in partitions of its own; set backend: native")

    @torch.no_grad()
    def grad_norms(self) -> Tensor:
        squares_L = torch.zeros(len(self.model.parts[0].layers), device=self.world.device)
        for name, parameter in self.model.named_parameters():
            layer = self.table[name].layer
            if layer is not None and parameter.requires_grad:
                squares_L[layer] += safe_get_full_grad(parameter).float().square().sum()
        return squares_L.sqrt()

    def weights(self) -> dict[str, Tensor]:
        return self.optimizer.weights()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        weights, states = (
            {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}
            for kind in ("model.", "optim.")
        )
        self.optimizer.write(weights, states)
