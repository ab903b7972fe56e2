"""AdamW (Loshchilov and Hutter, 2019, arXiv 1711.05101) for embeddings, biases and norms: torch's fused
kernel.

Only the bookkeeping is ours: the kernel runs on the local parts of sharded tensors, and its state is
allocated at once, so that a checkpoint can be loaded before the first step. Each parameter counts its own
steps, as in torch: one that has had no gradient for a while (the MTP layers while their loss is off) gets
its bias correction right. The kernel needs weights and moments of one type, so bf16 moments are widened for it, some
rows or experts at a time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import ParameterGroup
from glmforge.optim.ownership import batch_elements
from glmforge.optim.sharding import local_part
from glmforge.optim.update_rule import Part, TrainedParameter, UpdateRule
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
            trained = [member for member in members if member.has_gradient]
            if self.config.state_dtype == "fp32":
                self._update(group, trained, [member.states["step"] for member in trained], lr)
                continue
            for member in trained:
                member.states["step"].add_(1)
                for part in _parts(member.parameter):
                    self._update(group, [member], [member.states["step"] - 1], lr, part)

    def _update(
        self,
        group: ParameterGroup,
        trained: Sequence[TrainedParameter],
        steps: list[Tensor],
        lr: float,
        part: Part = local_part,
    ) -> None:
        """Update a part of each of `trained`; `steps` have not counted this update yet, and do so here."""
        means = [member.load("exp_avg", part) for member in trained]
        squares = [member.load("exp_avg_sq", part) for member in trained]
        adamw(
            [part(member.parameter) for member in trained],
            [part(member.parameter.grad) for member in trained if member.parameter.grad is not None],
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            lr=lr * group.lr_scale,
            weight_decay=group.weight_decay,
            eps=self.config.eps,
            maximize=False,
        )
        for member, mean, square in zip(trained, means, squares, strict=True):
            member.store("exp_avg", mean, part)
            member.store("exp_avg_sq", square, part)


def _parts(parameter: Tensor) -> Iterator[Part]:
    """This rank's part in portions of bounded size; a vector, and what has no rows, in one."""
    local = local_part(parameter)
    if local.dim() == 1 or not local.numel():
        yield local_part
        return
    portion = max(1, batch_elements(local.device) * len(local) // local.numel())
    for start in range(0, len(local), portion):
        yield partial(_rows, start, start + portion)


def _rows(start: int, stop: int, tensor: Tensor) -> Tensor:
    return local_part(tensor)[start:stop]
