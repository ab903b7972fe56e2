"""One optimizer for the whole model: an update rule for each optimizer of its parameter groups, one step and one state.

The state is a flat mapping from "<state>.<parameter name>" to a tensor, complete from the start and laid out like the
parameter unless it is a scalar. `torch.distributed.checkpoint` therefore saves it sharded, and loads it into an
optimizer that has not stepped yet, on any number of ranks.
"""

from collections.abc import Collection, Iterable, Mapping
from pkgutil import resolve_name

import torch
from torch import Tensor
from torch.nn import Parameter

from glmforge.config.kernels import KernelsConfig
from glmforge.config.optim import OptimConfig
from glmforge.config.optimizers import OPTIMIZERS, State
from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.parameters import ParameterTable
from glmforge.errors import CheckpointError
from glmforge.kernels.choice import UNMEASURED
from glmforge.optim.rounding import stream_of
from glmforge.optim.sharding import splits_of
from glmforge.optim.update_rule import TrainedParameter, UpdateRule
from glmforge.parallel.world import World

STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def build_optimizer(
    named_parameters: Iterable[tuple[str, Parameter]],
    table: ParameterTable,
    config: OptimConfig,
    *,
    world: World | None = None,
    compute_dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    kernels: KernelsConfig = UNMEASURED,
) -> "Optimizer":
    """The optimizer of all parameters that require a gradient; frozen ones are omitted.

    Build it after the model has been sharded, from the parameters of all model parts on this rank. `table` is the whole
    model's, from which `glmforge.config.parameter_groups` makes the groups. `world` is the one the model is laid out
    on, None for a single process that trains where its parameters lie. `compute_dtype=torch.float32` makes Muon's
    updates independent of the layout to within fp32 rounding, at twice the cost or more. `seed` is what the rounding of
    bf16 states draws from. `kernels` has been chosen, see `glmforge.kernels.choice`. A rule with `lr_scale: 0` takes
    `requires_grad` from its parameters here. Raises `UndeclaredParameterError` for a name that is not in the
    table, and `ValueError` for tensors that are not placed as by `glmforge.parallel`.
    """
    groups = {row.name: group for group in parameter_groups(table, config) for row in group.parameters}
    trained: dict[str, TrainedParameter] = {}
    for name, parameter in named_parameters:
        row = table[name]
        group = groups[name]
        if group.is_frozen:
            parameter.requires_grad_(False)
        elif parameter.requires_grad:
            states = {state.name: _allocate(state, parameter) for state in group.optimizer.states}
            streams = {state.name: stream_of(seed, state.key(name)) for state in group.optimizer.states}
            trained[name] = TrainedParameter(parameter, states, group, row.num_fused, streams)
    return Optimizer(trained, config, world or _alone([p.parameter for p in trained.values()]), compute_dtype, kernels)


class Optimizer:
    """See `build_optimizer`. `lr` is the learning rate of the next step, that of `config` until `set_lr`."""

    def __init__(
        self,
        trained: Mapping[str, TrainedParameter],
        config: OptimConfig,
        world: World,
        compute_dtype: torch.dtype,
        kernels: KernelsConfig = UNMEASURED,
    ):
        self.lr = config.lr
        self._parameters = [source.parameter for source in trained.values()]
        self._state = {
            state.key(name): source.states[state.name]
            for name, source in trained.items()
            for state in source.group.optimizer.states
        }
        self._rules: list[UpdateRule] = []
        for declaration in OPTIMIZERS.values():
            own = [source for source in trained.values() if source.group.optimizer.name == declaration.name]
            if own:
                rule = resolve_name(declaration.update_rule)(own, config, world, compute_dtype)
                rule.kernels = kernels
                self._rules.append(rule)

    def step(self) -> None:
        """Update every parameter that has a gradient; collective where parameters are sharded."""
        for rule in self._rules:
            rule.step(self.lr)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next steps."""
        self.lr = lr

    def state_dict(self) -> dict[str, Tensor]:
        """The live state, not a copy: "<state>.<parameter>", such as "momentum.lm_head.weight".

        Loading into these tensors in place, as `torch.distributed.checkpoint.load` does, loads the optimizer.
        """
        return dict(self._state)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy `state` in. Raises `CheckpointError` unless all names and shapes are this optimizer's."""
        _refuse_other_names(self._state.keys(), state.keys())
        for name, own in self._state.items():
            if own.shape != state[name].shape:
                raise CheckpointError(
                    f"optimizer state '{name}' has shape {list(state[name].shape)}, but this model needs "
                    f"{list(own.shape)}; load it into the model configuration it was saved from"
                )
            own.copy_(state[name])


def _alone(parameters: Collection[Tensor]) -> World:
    device = next((parameter.device for parameter in parameters), torch.device("cpu"))
    if any(splits_of(parameter) for parameter in parameters):
        raise ValueError("the optimizer of sharded parameters needs their world")
    return World.single(device)


def _allocate(state: State, parameter: Tensor) -> Tensor:
    dtype = STATE_DTYPES[state.dtype]
    if state.is_scalar:
        return torch.zeros((), dtype=dtype, device=parameter.device)
    return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)


def _refuse_other_names(own: Collection[str], loaded: Collection[str]) -> None:
    missing = [name for name in own if name not in loaded]
    unexpected = [name for name in loaded if name not in own]
    if missing or unexpected:
        raise CheckpointError(
            f"optimizer state does not fit: {len(missing)} tensors missing {missing[:3]}, {len(unexpected)} "
            f"unexpected {unexpected[:3]}; use the model and optim settings of the run that saved it"
        )
