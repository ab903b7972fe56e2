"""An optimizer that glmforge does not have, as somebody would add it: this file, and the row `SGD` in the registry."""

import torch

from glmforge.config.optimizers import OptimizerDeclaration, State
from glmforge.optim.sharding import local_part
from glmforge.optim.update_rule import UpdateRule

SGD = OptimizerDeclaration(name="sgd", update_rule="helpers.sgd:Sgd", states=(State("velocity"),), trains_vectors=True)


class Sgd(UpdateRule):
    """Stochastic gradient descent with momentum, `betas[0]`, and decoupled weight decay."""

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for source in self.parameters:
            if source.parameter.grad is not None:
                rate = lr * source.group.lr_scale
                velocity = local_part(source.states["velocity"])
                velocity.mul_(self.config.betas[0]).add_(local_part(source.parameter.grad))
                weight = local_part(source.parameter)
                weight.mul_(1 - rate * source.group.weight_decay).sub_(velocity, alpha=rate)
