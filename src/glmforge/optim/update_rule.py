"""What an optimizer is here: an update rule over all parameters of its groups, one instance per rank.

A rule is given its parameters with their states, allocated and registered by name by `glmforge.optim.optimizer`; what
the states are is declared in `glmforge.config.optimizers`. It only has to step. Parameters, gradients and states may be
DTensors: arithmetic element by element is done on their local parts (`glmforge.optim.sharding.local_part`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import ParameterGroup
from glmforge.parallel.world import World


@dataclass(frozen=True, eq=False)
class TrainedParameter:
    """A parameter, its states by the names of their declaration, and the group it belongs to.

    `num_fused` matrices stand above each other in the second-last dim.
    """

    parameter: Tensor
    states: Mapping[str, Tensor]
    group: ParameterGroup
    num_fused: int = 1

    @property
    def has_gradient(self) -> bool:
        return self.parameter.grad is not None


class UpdateRule(ABC):
    """Trains `parameters`, which are in the order of the model, by the settings in `config`.

    `compute_dtype` is for work that need not be fp32. A rule may communicate over `world`: all ranks of a pipeline
    stage have the same parameters, or parts of them, and step together.
    """

    def __init__(
        self, parameters: Sequence[TrainedParameter], config: OptimConfig, world: World, compute_dtype: torch.dtype
    ):
        self.parameters = list(parameters)
        self.config = config
        self.world = world
        self.compute_dtype = compute_dtype

    @abstractmethod
    def step(self, lr: float) -> None:
        """Update every parameter that has a gradient; `lr` is times the `lr_scale` of its group. Without a graph."""
