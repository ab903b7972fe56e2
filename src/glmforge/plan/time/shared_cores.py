"""A step on processor cores that all ranks share: what a machine without GPUs takes, where ranks are processes.

There the host does everything, so nothing hides behind anything else, and a rank that waits leaves its core to others:

- All ranks' work is done by the cores together, or as slowly as the rank with most of it. With all cores busy it takes
  `slowdown` times as long as alone.
- Only the first and last passes of a pipeline leave cores idle: until as many ranks as there are cores have work.
- Every pass of an operation, and every collective, costs the host something beside its work; FSDP's cost most.
- Collectives take what was measured of them, with as many groups at work at the same time.

Of the parts, "bubble" is that of the pipeline, and "host" what the host takes for collectives.
"""

import math
from typing import NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import stages_of_pp_rank
from glmforge.plan.machine.collectives import Group, collective_seconds
from glmforge.plan.machine.machine import Cores, Machine
from glmforge.plan.time.expected import expected_seconds
from glmforge.plan.time.reached import Implementation
from glmforge.plan.work.messages import Message, step_messages, weight_messages
from glmforge.plan.work.step import step_operations

_SHARDING = ("fsdp", "efsdp", "dp_replicate")


class RankWork(NamedTuple):
    """What one rank does in a step, alone on an idle machine.

    Attributes:
        products: seconds of matmuls and attention.
        memory: seconds of operations that memory bounds.
        update: seconds of the optimizer, part of both.
        operations: passes of operations.
        sharded: how often FSDP gathers or reduces a layer of which other ranks have a part.
        replicated: the same of layers that are whole on a rank, and of which others have replicas.
        messages: its collectives.
    """

    products: float
    memory: float
    update: float
    operations: float
    sharded: int
    replicated: int
    messages: list[Message]

    @property
    def other_messages(self) -> int:
        """Collectives that are not FSDP's."""
        return sum(message.times for message in self.messages if message.axis not in _SHARDING)

    def host_seconds(self, cores: Cores) -> float:
        """Of the host for collectives."""
        of_fsdp = cores.sharding_seconds * self.sharded + cores.replication_seconds * self.replicated
        return of_fsdp + cores.message_seconds * self.other_messages


def rank_work(
    config: RunConfig, layout: Layout, machine: Machine, implementation: Implementation, pp_rank: int = 0
) -> RankWork:
    """Of a rank of `pp_rank` in a step of the first phase."""
    products = memory = update = operations = 0.0
    for operation in step_operations(config, layout, pp_rank):
        times = float(operation.times)
        for direction, work in operation.passes:
            seconds = times * expected_seconds(operation, work, direction, machine.accelerator, implementation)
            if operation.kind == "memory":
                memory += seconds
            else:
                products += seconds
            update += seconds * operation.is_update
            operations += times * max(1, len(work.matmuls))
    sharded = replicated = 0
    for stage in stages_of_pp_rank(config, layout, pp_rank):
        for message in weight_messages(config, layout, stage):
            if message.axis in ("fsdp", "efsdp"):
                is_cut = layout.size(message.axis) > 1
                sharded += message.times * is_cut
                replicated += message.times * (not is_cut and layout.dp_replicate > 1)
    messages = step_messages(config, layout, pp_rank)
    return RankWork(products, memory, update, operations, sharded, replicated, messages)


def parts_on_cores(
    config: RunConfig, layout: Layout, machine: Machine, implementation: Implementation
) -> dict[str, float]:
    """Seconds of a step by what the ranks do."""
    cores = machine.cores
    assert cores is not None, "the ranks share cores"
    ranks = [rank_work(config, layout, machine, implementation, pp_rank) for pp_rank in range(layout.pp)]
    busy = min(1.0, (layout.world_size - 1) / max(1, cores.number - 1))
    slower = 1 + (cores.slowdown - 1) * busy

    def together(seconds: list[float]) -> float:
        """Of work that each pipeline place's ranks do."""
        return slower * max(*seconds, sum(seconds) * layout.stage_ranks / cores.number)

    update = together([rank.update for rank in ranks])
    compute = together([_computing(rank, cores.operation_seconds) for rank in ranks])
    host = together([rank.host_seconds(cores) for rank in ranks])
    ramp = min(layout.pp, math.ceil(cores.number / layout.stage_ranks)) - 1
    parts = {
        "compute": compute,
        "update": update,
        "host": host,
        "bubble": compute * ramp / layout.num_micro_batches(config.phases[0]),
    }
    return parts | _communication(max(ranks, key=lambda rank: rank.products + rank.memory), layout, machine)


def _computing(rank: RankWork, operation_seconds: float) -> float:
    return rank.products + rank.memory - rank.update + operation_seconds * rank.operations


def _communication(rank: RankWork, layout: Layout, machine: Machine) -> dict[str, float]:
    """Seconds of a rank's collectives by axis; all ranks are taken to be at work on theirs."""
    found: dict[str, float] = {}
    for axis, kind, size, times in rank.messages:
        num_ranks = layout.size(axis)
        near = min(num_ranks, machine.ranks_per_node)
        group = Group(num_ranks, near, max(1, layout.world_size // num_ranks))
        found[axis] = found.get(axis, 0.0) + times * collective_seconds(kind, size, group, machine)
    return found
