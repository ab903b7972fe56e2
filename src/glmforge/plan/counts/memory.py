"""How many bytes a model takes: weights, training state and KV cache.

These are sums over the whole model, before any sharding, and exact: they count tensors that exist.
Activations, gathered layers, communication buffers and the allocator's slack depend on layout and batch and
are not in them.
"""

from dataclasses import astuple, dataclass
from typing import Literal

from glmforge.config.model import ModelConfig
from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.parameters import ParameterTable
from glmforge.config.role import Role
from glmforge.plan.counts.parameters import count_parameters
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage

_BYTES = {"bf16": 2, "fp32": 4}
_FP32 = _BYTES["fp32"]

DType = Literal["bf16", "fp32"]


@dataclass(frozen=True)
class TrainingState:
    """Bytes that live through a whole training step."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def weight_bytes(config: ModelConfig, dtype: DType, with_mtp: bool = True) -> int:
    """Bytes of the weights in `dtype`; the routers' correction biases are fp32 in every checkpoint."""
    counts = count_parameters(config)
    count = counts.with_mtp if with_mtp else counts.without_mtp
    return count.parameters * _BYTES[dtype] + count.buffers * _FP32


def training_state(config: ModelConfig, optim: OptimConfig, stage: TrainingStage = PRETRAINING) -> TrainingState:
    """Bytes of weights, fp32 gradients and the states that each group's optimizer declares, of all the stage's models.

    Weights are fp32 masters of what the stage trains, and bf16 otherwise. Scalars beside a parameter (its number of
    steps) are omitted. What a rule freezes has neither gradient nor state.
    """
    states = [role_state(config, optim, role) for role in stage.roles]
    return TrainingState(*(sum(sizes) for sizes in zip(*map(astuple, states), strict=True)))


def role_state(config: ModelConfig, optim: OptimConfig, role: Role) -> TrainingState:
    """The same of one of a stage's models."""
    table = role.held(config)
    changed = ParameterTable(row for row in table.values() if role.trains(row))
    trained = [group for group in parameter_groups(changed, optim) if not group.is_frozen]
    return TrainingState(
        weights=sum(row.size * role.element_bytes(row) for row in table.values()),
        gradients=sum(group.num_elements for group in trained) * _FP32,
        optimizer=sum(group.num_elements * group.optimizer.bytes_per_element for group in trained),
    )


def kv_cache_bytes_per_token(config: ModelConfig, dtype: DType = "bf16") -> int:
    """Bytes of keys and values that one token leaves in the cache of all trunk layers."""
    elements = 2 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
    return elements * _BYTES[dtype]
