"""What an optimizer is here: an update rule over all parameters of its groups, one instance per rank.

A rule is given its parameters with their states, allocated and registered by name by `glmforge.optim.optimizer`; what
the states are is declared in `glmforge.config.optimizers`. It only has to step. Parameters, gradients and states may be
DTensors: arithmetic element by element is done on their local parts (`glmforge.optim.sharding.local_part`). A rule that
declares bf16 states computes on `TrainedParameter.load`, which is the state itself where it is fp32, and hands the
result to `TrainedParameter.store`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import ParameterGroup
from glmforge.kernels.choice import ChoosesKernels
from glmforge.optim.rounding import row_streams, store
from glmforge.optim.sharding import local_part
from glmforge.parallel.world import World

Part = Callable[[Tensor], Tensor]
"""Takes a part of a tensor laid out like the parameter: a view of this rank's part, whole in its last dim."""


@dataclass(frozen=True, eq=False)
class TrainedParameter:
    """A parameter, its states by the names of their declaration, and the group it belongs to.

    `num_fused` matrices stand above each other in the second-last dim. `streams`, by name of the state, are what its
    rounding draws from.
    """

    parameter: Tensor
    states: Mapping[str, Tensor]
    group: ParameterGroup
    num_fused: int = 1
    streams: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def has_gradient(self) -> bool:
        return self.parameter.grad is not None

    def load(self, state: str, part: Part = local_part) -> Tensor:
        """A part of a state in fp32: the state itself if it is, else a copy."""
        return part(self.states[state]).float()

    def store(self, state: str, values: Tensor, part: Part = local_part) -> None:
        """Bring what `load` gave back, changed in place; `step` has counted this update already."""
        stored = part(self.states[state])
        if stored.dtype != values.dtype:
            streams, first_column = row_streams(self.streams[state], self.states["step"], self.parameter)
            store(stored, values, part(streams), first_column)


class UpdateRule(ChoosesKernels, ABC):
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
