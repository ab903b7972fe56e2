"""AdamW (Loshchilov and Hutter, 2019, arXiv 1711.05101) for embeddings, biases and norms: torch's fused
kernel.

Only the bookkeeping is ours: the kernel runs on the local parts of sharded tensors, and its state is
allocated at once, so that a checkpoint can be loaded before the first step. Each parameter counts its own
steps, as in torch: one that has had no gradient for a while (the MTP layers while their loss is off) gets
its bias correction right.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch.optim.adamw import adamw

from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import ParameterGroup
from glmforge.optim.sharding import local_part
from glmforge.optim.update_rule import TrainedParameter, UpdateRule
from glmforge.parallel.world import World


class AdamW(UpdateRule):
    """Both moments are laid out like the parameter; its number of steps is a scalar beside it."""

    def __init__(
        self, parameters: Sequence[TrainedParameter], config: OptimConfig, world: World, compute_dtype: torch.dtype
    ):
        super().__init__(parameters, config, world, compute_dtype)
        self._by_group: dict[ParameterGroup, list[TrainedParameter]] = defaultdict(list)
        for parameter in parameters:
            self._by_group[parameter.group].append(parameter)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter that has a gradient."""
        for group, members in self._by_group.items():
            trained = [(m, m.parameter.grad) for m in members if m.parameter.grad is not None]
            adamw(
                [local_part(member.parameter) for member, _ in trained],
                [local_part(gradient) for _, gradient in trained],
                [local_part(member.states["exp_avg"]) for member, _ in trained],
                [local_part(member.states["exp_avg_sq"]) for member, _ in trained],
                [],
                [member.states["step"] for member, _ in trained],
                fused=True,
                amsgrad=False,
                beta1=self.config.betas[0],
                beta2=self.config.betas[1],
                lr=lr * group.lr_scale,
                weight_decay=group.weight_decay,
                eps=self.config.eps,
                maximize=False,
            )
