"""What follows a step's passes: the optimizer's update, what its ranks exchange for it, and what a checkpoint copies.

Like the passes, it is counted piece by piece and remembered (`glmforge.plan.time.pieces`).
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.parameter_groups import parameter_groups
from glmforge.config.parameters import Parameter, ParameterTable
from glmforge.config.role import Role
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.ceilings import ceilings
from glmforge.plan.machine.collectives import Group, collective_seconds
from glmforge.plan.machine.machine import Machine
from glmforge.plan.time.expected import expected_seconds
from glmforge.plan.time.piece import Piece
from glmforge.plan.time.pieces import Situation, parameters_of
from glmforge.plan.time.reached import Implementation
from glmforge.plan.work.operations import BF16, FP32
from glmforge.plan.work.update_operations import shard_elements, update_operations


class UpdateTime(NamedTuple):
    """Of a step, in seconds but for `exchanged`.

    Attributes:
        casts: making weights bf16 for forward passes.
        accumulation: adding up gradients.
        update: the optimizer's arithmetic.
        exchange: bringing the parts of matrices together and their updates back (Muon).
        snapshot: copying what a checkpoint holds into the host's memory, once.
        exchanged: bytes that a rank sends for the exchange.
    """

    casts: float = 0.0
    accumulation: float = 0.0
    update: float = 0.0
    exchange: float = 0.0
    snapshot: float = 0.0
    exchanged: float = 0.0

    def plus(self, other: "UpdateTime", times: int) -> "UpdateTime":
        """This and `other` this many times."""
        return UpdateTime(*(mine + times * more for mine, more in zip(self, other, strict=True)))


def update_time(piece: Piece, role: Role, situation: Situation, casts_per_step: int) -> UpdateTime:
    """Of what a role trains of the piece."""
    config, layout = situation.config, situation.layout
    rows = tuple(row for row in parameters_of(piece, role, situation) if role.trains(row))
    return _update(
        _UpdateKey(
            rows,
            config,
            situation.model,
            role,
            config.optim.model_dump_json(),
            piece,
            situation.with_mtp,
            (layout.dp_replicate, layout.fsdp, layout.efsdp, layout.tp, layout.ep),
            layout,
            layout.num_micro_batches(config.phases[0]),
            casts_per_step,
            situation.machine,
            situation.kernels.implementation,
            config.parallel.cpu_offload,
            config.regularization.ewc is not None,
        )
    )


@dataclass(frozen=True)
class _UpdateKey:
    rows: tuple[Parameter, ...] = field(compare=False)
    config: RunConfig = field(compare=False)
    model: str
    role: Role
    optim: str
    piece: Piece
    with_mtp: bool
    cuts: tuple[int, ...]
    layout: Layout = field(compare=False)
    micro_batches: int
    casts_per_step: int
    machine: Machine
    implementation: Implementation
    in_host: bool
    with_ewc: bool


@lru_cache(maxsize=1 << 12)
def _update(key: _UpdateKey) -> UpdateTime:
    if not key.rows:
        return UpdateTime()
    accelerator = key.machine.accelerator
    operations = update_operations(
        list(key.rows),
        ParameterTable(key.rows),
        key.config.optim,
        key.layout,
        micro_batches=key.micro_batches,
        casts_per_step=key.casts_per_step,
        with_ewc=key.with_ewc,
    )
    casts = accumulation = update = 0.0
    for operation in operations:
        times, how = float(operation.times), (accelerator, key.implementation)
        forward = times * expected_seconds(operation, operation.forward, "forward", *how)
        backward = times * expected_seconds(operation, operation.backward, "backward", *how)
        if not operation.is_update:
            casts, accumulation = casts + forward, accumulation + backward
        elif key.in_host and operation.kind == "memory":
            update += forward * ceilings(accelerator).bandwidth / key.machine.host_bandwidth
        else:
            update += forward + backward
    return UpdateTime(casts, accumulation, update, *_moved(key))


def _moved(key: _UpdateKey) -> tuple[float, float, float]:
    """(exchange, snapshot, exchanged). A matrix whose parts or copies lie on several ranks goes to its owner in bf16,
    one copy of it, and its update comes back to all. Weights and optimizer states are saved, each shard once."""
    layout, machine = key.layout, key.machine
    sent = saved = 0.0
    for group in parameter_groups(ParameterTable(key.rows), key.config.optim):
        for row in group.parameters:
            shard = float(shard_elements(row, layout))
            saved += shard * (FP32 + group.optimizer.bytes_per_element * (not group.is_frozen)) / layout.dp_replicate
            is_local = layout.dp_replicate * (layout.efsdp if row.expert else layout.fsdp * layout.tp) == 1
            if group.optimizer.name == "muon" and not group.is_frozen and not is_local:
                sent += BF16 * shard * (1 + 1 / layout.dp_replicate)
    exchange = collective_seconds("all_to_all", sent, exchange_group(layout, machine), machine)
    return exchange, saved / machine.host_link, sent


def exchange_group(layout: Layout, machine: Machine) -> Group:
    """The ranks among which Muon brings matrices together: all that hold the same layers."""
    return Group(layout.stage_ranks, min(machine.ranks_per_node, layout.stage_ranks))
