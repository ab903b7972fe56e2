"""What is allowed but makes no sense: layouts that waste devices, or ask for more than a step can use.

Every warning names the setting and what it costs; none of them stops a run.
"""

from collections.abc import Iterator

from glmforge.config.layout import Layout
from glmforge.config.parallel import SPLIT_SCHEDULES
from glmforge.config.pipeline import layer_costs
from glmforge.config.schema import RunConfig
from glmforge.plan.layout import stages_of_pp_rank
from glmforge.plan.machine.machine import Machine

MOST_MICRO_BATCHES = 256
"""On a rank in a step: more would be done as well by larger ones, or by more data ranks."""
LEAST_TOKENS = 1024
"""Of a micro-batch on a rank: below, matrices are too narrow to keep a device busy."""
MOST_BUBBLE = 0.2
MOST_IDLE = 0.25


def layout_warnings(config: RunConfig, layout: Layout, machine: Machine | None = None) -> list[str]:
    """One line for each thing that is bad about the first phase's layout; on `machine`, if it is known."""
    return [
        *_of_micro_batches(config, layout),
        *_of_pipeline(config, layout),
        *_of_recompute(config, layout),
        *_of_copies(layout),
        *(_of_nodes(layout, machine.ranks_per_node) if machine else ()),
    ]


def _of_micro_batches(config: RunConfig, layout: Layout) -> Iterator[str]:
    phase = config.phases[0]
    number, share = layout.num_micro_batches(phase), layout.rank_batch_size(phase)
    if number > MOST_MICRO_BATCHES:
        yield (
            f"parallel.micro_batch_size: {layout.micro_batch_size} makes {number:,} micro-batches of every data rank's "
            f"{share:,} sequences, one after another: with {layout.data_ranks:,} data ranks for "
            f"{phase.batch_size:,} sequences the batch is large for this job; use larger micro-batches, less cp, tp "
            f"or pp, more GPUs, or a smaller batch"
        )
    tokens = share // number * phase.seq_len // layout.cp
    if tokens < LEAST_TOKENS and layout.world_size > 1:
        yield (
            f"phases: a rank has {tokens:,} tokens of a micro-batch, and its matrices are too narrow to keep a GPU "
            "busy; lower parallel.cp, raise parallel.micro_batch_size, or use a larger batch or fewer GPUs"
        )


def _of_pipeline(config: RunConfig, layout: Layout) -> Iterator[str]:
    if layout.pp == 1:
        return
    number = layout.num_micro_batches(config.phases[0])
    stages = len(layout.stage_layers) // layout.pp
    schedule = config.parallel.pipeline_schedule
    bubble = (layout.pp - 1) / (number * stages + layout.pp - 1)
    if bubble > MOST_BUBBLE and schedule not in SPLIT_SCHEDULES:
        yield (
            f"parallel.pp: {layout.pp} ranks and {number} micro-batches: the pipeline is idle for {bubble:.0%} of "
            "each step; lower pp, or make micro-batches smaller"
        )
    of_rank = [_work(config, layout, pp_rank) for pp_rank in range(layout.pp)]
    idle = 1 - sum(of_rank) / len(of_rank) / max(of_rank)
    if idle > MOST_IDLE:
        fullest = of_rank.index(max(of_rank))
        yield (
            f"parallel.pp: {layout.pp} ranks share {config.model.num_hidden_layers} layers so unequally that on "
            f"average {idle:.0%} of their time is spent waiting for rank {fullest}; choose a pp that divides the work "
            "better, or give pipeline_layers"
        )


def _of_recompute(config: RunConfig, layout: Layout) -> Iterator[str]:
    parallel = config.parallel
    if layout.pp > 1 and parallel.pipeline_schedule in SPLIT_SCHEDULES and parallel.recompute != "none":
        yield (
            f"parallel.recompute: {parallel.recompute} with {parallel.pipeline_schedule}: torch computes the gradients "
            "of a layer's weights in some 14 groups, and the layer again for each of them; set recompute to none, or "
            "the schedule to interleaved_1f1b"
        )


def _work(config: RunConfig, layout: Layout, pp_rank: int) -> int:
    """Matrix elements that a token passes on a pipeline rank."""
    costs, tail = layer_costs(config.model)
    stages = stages_of_pp_rank(config, layout, pp_rank)
    return sum(sum(costs[stage.start : stage.stop]) + tail * stage.has_head for stage in stages)


def _of_copies(layout: Layout) -> Iterator[str]:
    if layout.dp_replicate > 1 and layout.fsdp == 1 and layout.dp_replicate >= 8:
        yield (
            f"parallel.dp_replicate: {layout.dp_replicate} ranks hold the same weights and optimizer state whole; "
            "dp_shard: auto with dp_replicate: 1 shares them"
        )


def _of_nodes(layout: Layout, ranks_per_node: int) -> Iterator[str]:
    if layout.tp > ranks_per_node:
        yield (
            f"parallel.tp: {layout.tp} ranks do not fit into a node of {ranks_per_node}: every layer's activations "
            "cross the network four times; set it to a divisor of that"
        )
    if layout.world_size > ranks_per_node and layout.world_size % ranks_per_node:
        yield (f"--gpus: {layout.world_size} do not fill whole nodes of {ranks_per_node}; the last one is partly idle")
