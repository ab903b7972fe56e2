"""All operations of an optimizer step of one rank, from a run's configuration and layout.

Each sequence is one document unless told otherwise, and the router is balanced. Only `precision.compute: bf16` is
counted. What the router's balance loss, adapters and dropout add is left out.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from glmforge.config.layout import Layout
from glmforge.config.parameters import Parameter, ParameterTable, parameter_table
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.layout import StageContent, stages_of_pp_rank
from glmforge.plan.work import operations
from glmforge.plan.work.operations import Operation, Share
from glmforge.plan.work.update_operations import update_operations


def micro_batch_share(config: RunConfig, layout: Layout, mean_attended: int | None = None) -> Share:
    """What a rank has of a micro-batch of the first phase; `mean_attended` as for `train_flops_per_token`."""
    phase = config.phases[0]
    rows = layout.rank_batch_size(phase) // layout.num_micro_batches(phase)
    tokens = rows * phase.seq_len // layout.cp
    return Share(
        tokens=tokens,
        attended=tokens * (mean_attended or phase.seq_len),
        cp=layout.cp,
        tp=layout.tp,
        ep=layout.ep,
        sequence_parallel=config.parallel.sequence_parallel,
    )


def step_operations(
    config: RunConfig, layout: Layout, pp_rank: int = 0, mean_attended: int | None = None
) -> list[Operation]:
    """The operations of a step of the first phase on a rank of `pp_rank`; several may have one name.

    Raises `ConfigError` for fp32, in which other kernels run.
    """
    if config.precision.compute != "bf16":
        raise ConfigError("precision.compute: the operations of a step are counted for bf16 only; set it to bf16")
    share = micro_batch_share(config, layout, mean_attended)
    micro_batches = layout.num_micro_batches(config.phases[0])
    stages = stages_of_pp_rank(config, layout, pp_rank)
    found = [
        replace(operation, times=operation.times * micro_batches)
        for stage in stages
        for operation in stage_operations(config, share, stage)
    ]
    table = parameter_table(config.model)
    used = [row for stage in stages for row in used_parameters(table, config, stage)]
    # A rank alone casts in every forward pass; FSDP casts what it gathers, as often as it gathers.
    reshards = config.parallel.reshards_after_forward
    again = config.parallel.recompute == "full" if layout.fsdp == 1 else reshards
    gathers = 1 if layout.pp > 1 and layout.fsdp > 1 and not reshards else micro_batches
    return found + list(
        update_operations(
            used,
            table,
            config.optim,
            layout,
            micro_batches=micro_batches,
            casts_per_step=gathers * (1 + again),
        )
    )


def used_parameters(table: ParameterTable, config: RunConfig, stage: StageContent) -> Iterator[Parameter]:
    """The rows of `table` that a stage of the pipeline holds; without the MTP layers' while nothing asks for them."""
    num_trunk, with_mtp = config.model.num_hidden_layers, stage.num_mtp > 0 and config.phases[0].mtp_loss_weight > 0
    for row in table.values():
        if row.layer is not None:
            is_here = stage.start <= row.layer < stage.stop if row.layer < num_trunk else with_mtp
        else:
            is_here = stage.has_embedding if row.family == "embedding" else stage.has_head
        if is_here:
            yield row


def stage_operations(config: RunConfig, share: Share, stage: StageContent) -> Iterator[Operation]:
    """One micro-batch through a stage of the pipeline, or any part of one."""
    model, recompute = config.model, config.parallel.recompute
    num_mtp = model.num_nextn_predict_layers if config.phases[0].mtp_loss_weight else 0
    if stage.has_embedding:  # every MTP depth looks its own tokens up
        yield replace(operations.embedding(model, share), times=1 + num_mtp)
    layers = [(stage.num_dense, False), (stage.num_moe + min(stage.num_mtp, num_mtp), True)]
    for number, is_moe in layers:
        for operation in operations.done_again(operations.layer(model, share, is_moe=is_moe), recompute):
            if number:
                yield replace(operation, times=number)
    if not stage.has_head:
        return
    yield operations.final_norm(model, share)
    for operation in operations.head(model, share):
        yield replace(operation, times=1 + num_mtp)
    if num_mtp:
        for operation in operations.done_again(operations.mtp_entry(model, share), recompute):
            yield replace(operation, times=num_mtp)


def model_flops(found: list[Operation]) -> int | Fraction:
    """What utilisation counts of a step."""
    return sum(operation.model_flops for operation in found)
