"""A step on processor cores that all ranks share: what a machine without GPUs takes, where ranks are processes.

There the host does everything, so nothing hides behind anything else, and a rank that waits leaves its core to others:

- All ranks' work is done by the cores together, or as slowly as the rank with most of it. With all cores busy it takes
  `slowdown` times as long as alone.
- Only the first and last passes of a pipeline leave cores idle: until as many ranks as there are cores have work.
- Every pass of an operation, and every collective of FSDP, costs the host something beside its work.
- Collectives take what was measured of them, with as many groups at work at the same time.

Of the parts, "bubble" is that of the pipeline, and "sharding" FSDP's work on the host.
"""

import math
from typing import NamedTuple

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.collectives import Group, collective_seconds
from glmforge.plan.machine.machine import Machine
from glmforge.plan.time.expected import expected_seconds
from glmforge.plan.time.reached import Implementation
from glmforge.plan.work.messages import Message, step_messages
from glmforge.plan.work.step import step_operations

_SHARDING = ("fsdp", "efsdp", "dp_replicate")


class RankWork(NamedTuple):
    """What one rank does in a step, alone on an idle machine.

    Attributes:
        products: seconds of matmuls and attention.
        memory: seconds of operations that memory bounds.
        update: seconds of the optimizer, part of both.
        operations: passes of operations.
        messages: its collectives.
    """

    products: float
    memory: float
    update: float
    operations: float
    messages: list[Message]

    @property
    def sharding_calls(self) -> int:
        """Collectives of FSDP."""
        return sum(message.times for message in self.messages if message.axis in _SHARDING)


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
    return RankWork(products, memory, update, operations, step_messages(config, layout, pp_rank))


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
    sharding = together([cores.sharding_seconds * rank.sharding_calls for rank in ranks])
    ramp = min(layout.pp, math.ceil(cores.number / layout.stage_ranks)) - 1
    parts = {
        "compute": compute,
        "update": update,
        "sharding": sharding,
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
