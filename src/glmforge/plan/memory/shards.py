"""What a rank holds of the parameters of a layer: its shard, and the whole while the layer computes.

FSDP2 cuts a parameter into equal blocks of rows, rounded up, and every rank allocates a block of that size: weights,
gradients and gathered weights are padded, optimizer states are not. Since the first ranks of a stage have full blocks,
what is said here holds for them, and others have less.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from glmforge.config.adapters import adapted_maps, is_adapter
from glmforge.config.layout import Layout
from glmforge.config.model import ModelConfig
from glmforge.config.parameter_groups import held_in_bf16, parameter_groups
from glmforge.config.parameters import Parameter, ParameterTable
from glmforge.config.regularization import EWC_BYTES
from glmforge.config.role import MODEL, Role
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import StageContent, stages_of
from glmforge.plan.stages.gradients import part_of
from glmforge.plan.work.operations import BF16, FP32


@dataclass(frozen=True)
class Weight:
    """A parameter (or buffer) with what an optimizer keeps of it.

    Attributes:
        state_bytes: of the optimizer's states for each element, and of what `regularization.ewc` holds.
        scalar_bytes: of the states beside the parameter.
        has_gradient: it is trained, and the phase's losses reach it.
        itemsize: of an element between steps: fp32, or bf16 of what a stage or a rule freezes.
    """

    row: Parameter
    state_bytes: int
    scalar_bytes: int
    has_gradient: bool
    itemsize: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for weights that take the same memory in every layout."""
        return (
            self.row.shape,
            self.row.tp_dim,
            self.row.expert,
            self.row.trained,
            self.is_fp32,
            self.state_bytes,
            self.scalar_bytes,
            self.has_gradient,
            self.itemsize,
        )

    @property
    def is_fp32(self) -> bool:
        """Whether it is gathered in fp32 regardless of the compute dtype: a router's weight that is held so."""
        return ".mlp.gate." in self.row.name and self.itemsize == FP32


@dataclass(frozen=True)
class Shard:
    """Bytes of some parameters on a rank.

    Attributes:
        weights, gradients, optimizer: as long as they are there.
        gathered: the whole weights that FSDP puts together for a layer, in the type in which it computes.
        casts: copies of weights in the compute type, made in each forward pass of weights that FSDP leaves alone.
        unreduced: fp32 gradients of the whole parameters, before FSDP has summed and cut them.
        own: of `gradients`, those of parameters that FSDP leaves alone.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0
    casts: int = 0
    unreduced: int = 0
    own: int = 0

    def __add__(self, other: "Shard") -> "Shard":
        return Shard(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
            self.gathered + other.gathered,
            self.casts + other.casts,
            self.unreduced + other.unreduced,
            self.own + other.own,
        )

    def __mul__(self, number: int) -> "Shard":
        return Shard(
            self.weights * number,
            self.gradients * number,
            self.optimizer * number,
            self.gathered * number,
            self.casts * number,
            self.unreduced * number,
            self.own * number,
        )


StageKey = tuple[tuple[tuple[int, int], ...], bool, bool]
"""Of a stage: how many layers of each kind, whether it has the embedding, and the head."""


class Weights:
    """The parameters of a run by layer: layers with equal parameters are of one kind.

    `kinds` are the weights of each kind, `kind_of_layer` the kind of each layer, MTP layers last; `first` and `last`
    are the weights before the layers, and those after them. `readers` are the maps and norms of layers that have a
    gradient of their own, or an adapter, by their names there; None: all. What has been added up for one layout is
    remembered for the others that cut alike.
    """

    def __init__(self, config: RunConfig, role: Role = MODEL) -> None:
        table = role.held(config.model)
        self.readers = _readers(table, config.model, role)
        changed = ParameterTable(row for row in table.values() if role.trains(row))
        groups = {row.name: group for group in parameter_groups(changed, config.optim) for row in group.parameters}
        more = 0 if config.regularization.ewc is None else EWC_BYTES
        uses_mtp = config.phases[0].mtp_loss_weight > 0
        rounded = held_in_bf16(changed, config.optim, config.precision)
        by_layer: dict[int | None, list[Weight]] = {}
        for row in table.values():
            group = groups.get(row.name)
            trained = group is not None and not group.is_frozen
            states = group.optimizer if group is not None and trained else None
            weight = Weight(
                row,
                states.bytes_per_element + more if states else 0,
                FP32 * sum(state.is_scalar for state in states.states) if states else 0,
                trained and (uses_mtp or not row.mtp),
                BF16 if row.name in rounded else role.element_bytes(row),
            )
            by_layer.setdefault(row.layer, []).append(weight)
        outer = by_layer.pop(None)
        self.first = [weight for weight in outer if weight.row.of_embedding]
        self.last = [weight for weight in outer if not weight.row.of_embedding]
        kinds: dict[tuple[object, ...], int] = {}
        self.kinds: list[list[Weight]] = []
        self.kind_of_layer: list[int] = []
        for layer in sorted(number for number in by_layer if number is not None):
            key = tuple(weight.key for weight in by_layer[layer])
            if key not in kinds:
                kinds[key] = len(kinds)
                self.kinds.append(by_layer[layer])
            self.kind_of_layer.append(kinds[key])
        self._shards: dict[tuple[object, ...], tuple[list[Shard], Shard, Shard]] = {}
        self._stage_keys: dict[tuple[int, ...], list[StageKey]] = {}

    def shards(self, sharding: "Sharding") -> tuple[list[Shard], Shard, Shard]:
        """Of a layer of each kind, of `first` and of `last`."""
        layout = sharding.layout
        cuts = layout.fsdp, layout.efsdp, layout.ep, layout.tp, layout.dp_replicate > 1, sharding.itemsize
        if cuts not in self._shards:
            found = [sharding.of(kind) for kind in self.kinds]
            self._shards[cuts] = found, sharding.of(self.first), sharding.of(self.last)
        return self._shards[cuts]

    def stage_keys(self, model: ModelConfig, layout: Layout) -> list[StageKey]:
        """Of each stage of the pipeline, first to last."""
        if layout.stage_layers not in self._stage_keys:
            self._stage_keys[layout.stage_layers] = [self._key(model, stage) for stage in stages_of(model, layout)]
        return self._stage_keys[layout.stage_layers]

    def _key(self, model: ModelConfig, content: StageContent) -> StageKey:
        trunk = model.num_hidden_layers
        # A role without a vocabulary has no layers for multi-token prediction.
        last = min(trunk + content.num_mtp, len(self.kind_of_layer))
        layers = [*range(content.start, content.stop), *range(trunk, last)]
        kinds = Counter(self.kind_of_layer[layer] for layer in layers)
        return tuple(sorted(kinds.items())), content.has_embedding, content.has_head


def _readers(table: ParameterTable, model: ModelConfig, role: Role) -> frozenset[str] | None:
    if role.lora is None:
        return None
    names = [row.name for row in table.values() if role.trains(row) and not is_adapter(row)]
    names += [one.row.name for one in adapted_maps(model, role.lora)]
    return frozenset(part_of(name, model).name for name in names)


@dataclass(frozen=True)
class Sharding:
    """How a layout cuts the parameters of a model that computes in a type of `itemsize` bytes."""

    model: ModelConfig
    layout: Layout
    itemsize: int

    @cached_property
    def uses_fsdp(self) -> bool:
        layout = self.layout
        return layout.dp_replicate * max(layout.fsdp, layout.efsdp) > 1

    @cached_property
    def parts_experts(self) -> bool:
        """Whether experts lie on other ranks than the rest of their layer."""
        return self.layout.ep * self.layout.tp > 1

    @cached_property
    def leaves_experts(self) -> bool:
        """Whether FSDP leaves experts alone: they lie on no other rank."""
        return not self.uses_fsdp or (self.parts_experts and self.layout.dp_replicate * self.layout.efsdp == 1)

    def of(self, weights: Iterable[Weight]) -> Shard:
        """Of some parameters together."""
        total = Shard()
        for weight in weights:
            total += self._of_one(weight)
        return total

    def _of_one(self, weight: Weight) -> Shard:
        row = weight.row
        if not row.trained:
            return Shard(weights=weight.itemsize * row.size)
        shape = self.used_shape(row)
        alone = not self.uses_fsdp or (row.expert and self.leaves_experts)
        block = math.prod(shape)
        if not alone:
            dim, ranks = self.cut(row, shape)
            block = block // shape[dim] * -(-shape[dim] // ranks)
        whole = block if alone else block * ranks
        itemsize = FP32 if weight.is_fp32 else 1 if row.dtype == "uint8" else self.itemsize
        gradient = FP32 * weight.has_gradient
        is_cast = alone and itemsize < weight.itemsize and row.family != "embedding"
        return Shard(
            weights=weight.itemsize * block,
            gradients=gradient * block,
            optimizer=weight.state_bytes * block + weight.scalar_bytes,
            gathered=0 if alone else itemsize * whole,
            casts=itemsize * whole if is_cast else 0,
            unreduced=0 if alone else gradient * whole,
            own=gradient * block if alone else 0,
        )

    def made_bytes(self, row: Parameter) -> int:
        """Of the weight that is made of codes while its map computes; 0 of other parameters."""
        return 2 * math.prod(self.used_shape(row)) * self.itemsize if row.dtype == "uint8" else 0

    def used_shape(self, row: Parameter) -> tuple[int, ...]:
        """Of the part that this rank computes with."""
        shape = list(row.shape)
        if row.expert:
            shape[0] //= self.layout.ep
        elif row.tp_dim is not None:
            shape[row.tp_dim] //= self.layout.tp
        return tuple(shape)

    def cut(self, row: Parameter, shape: tuple[int, ...]) -> tuple[int, int]:
        """The dim that FSDP cuts, and over how many ranks."""
        if not (row.expert and self.parts_experts):
            return 0, self.layout.fsdp
        ranks, model = self.layout.efsdp, self.model
        rows_divide = 2 * model.moe_intermediate_size % ranks == model.hidden_size % ranks == 0
        return (1 if shape[0] % ranks and rows_divide else 0), ranks
