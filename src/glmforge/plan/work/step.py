"""All operations of an optimizer step of one rank, from a run's configuration and layout.

Each sequence is one document unless configured otherwise, and the router is balanced. Only `precision.compute: bf16` is
counted. What the router's balance loss and dropout add is omitted, and a head of a
few outputs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain

from glmforge.config.layout import Layout
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Parameter, ParameterTable
from glmforge.config.role import MODEL, Role
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.layout import StageContent, stages_of_pp_rank
from glmforge.plan.stages.gradients import Gradients
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage, laid_out
from glmforge.plan.work import operations
from glmforge.plan.work.operations import Operation, Share, done_again
from glmforge.plan.work.role_operations import forward_alone, trained_by, under_rules
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
    config: RunConfig,
    layout: Layout,
    pp_rank: int = 0,
    mean_attended: int | None = None,
    stage: TrainingStage = PRETRAINING,
) -> list[Operation]:
    """The operations of a step of the first phase on a rank of `pp_rank`, of all the stage's models; several may have
    one name.

    Raises `ConfigError` for fp32, in which other kernels run.
    """
    if config.precision.compute != "bf16":
        raise ConfigError("precision.compute: the operations of a step are counted for bf16 only; set it to bf16")
    share = micro_batch_share(config, layout, mean_attended)
    return [
        operation
        for role in stage.roles
        for operation in _role_operations(*laid_out(role, config, layout), pp_rank, share, role)
    ]


def _role_operations(config: RunConfig, layout: Layout, pp_rank: int, share: Share, role: Role) -> Iterator[Operation]:
    contents = stages_of_pp_rank(config, layout, pp_rank)
    micro_batches = layout.num_micro_batches(config.phases[0])
    for content in contents:
        yield from times(micro_batches, role_passes(config, share, content, role))
    rows = [row for content in contents for row in held_parameters(config, content, role) if role.trains(row)]
    if not rows:
        return
    # A rank alone casts in every forward pass; FSDP casts what it gathers, as often as it gathers.
    reshards = config.parallel.reshards_after_forward
    again = config.parallel.recompute == "full" if layout.fsdp == 1 else reshards
    gathers = 1 if layout.pp > 1 and layout.fsdp > 1 and not reshards else micro_batches
    yield from update_operations(
        rows,
        ParameterTable(rows),
        config.optim,
        layout,
        micro_batches=micro_batches,
        casts_per_step=gathers * (1 + again + role.forwards),
        with_ewc=config.regularization.ewc is not None,
    )


def held_parameters(config: RunConfig, content: StageContent, role: Role = MODEL) -> list[Parameter]:
    """The parameters of a role, trained or frozen, that a stage of the pipeline uses."""
    return [row for row in used_parameters(role.parameters(config.model), config, content) if row.trained]


def used_parameters(table: ParameterTable, config: RunConfig, content: StageContent) -> Iterator[Parameter]:
    """The rows of `table` that a stage of the pipeline uses; without the MTP layers' while nothing asks for them."""
    num_trunk, with_mtp = config.model.num_hidden_layers, content.num_mtp > 0 and config.phases[0].mtp_loss_weight > 0
    for row in table.values():
        if row.layer is not None:
            is_here = content.start <= row.layer < content.stop if row.layer < num_trunk else with_mtp
        else:
            is_here = content.has_embedding if row.family == "embedding" else content.has_head
        if is_here:
            yield row


def stage_operations(
    config: RunConfig, share: Share, content: StageContent, stage: TrainingStage = PRETRAINING
) -> Iterator[Operation]:
    """One micro-batch through a stage of the pipeline, or any part of one, of all the models that train together."""
    for role in stage.roles:
        yield from role_passes(config, share, content, role)


def role_passes(config: RunConfig, share: Share, content: StageContent, role: Role) -> Iterator[Operation]:
    """One micro-batch through a stage of the pipeline, in all the passes that a role makes."""
    model = config.model
    if role.is_trained:
        gradients = Gradients.of(model, config.optim, role)
        yield from _trained(role, gradients, 0, _entry(model, share, content))
        yield from _trained_layers(config, share, content, role, gradients)
        last = model.num_hidden_layers - 1
        yield from _trained(role, gradients, last, _exit(model, share, content, role.has_logits(model)))
        if config.phases[0].mtp_loss_weight and role.has_vocabulary:
            yield from _mtp(config, share, content, role, gradients)
    passed = chain(
        _entry(model, share, content),
        _layers(model, share, content),
        _exit(model, share, content, role.has_logits(model)),
    )
    yield from forward_alone(role, passed)


def _trained(
    role: Role, gradients: Gradients, layer: int, found: Iterable[Operation], *, adapted: bool = True
) -> Iterator[Operation]:
    """The operations as a role that trains runs them, with the gradients that are requested in `layer`."""
    if gradients.is_whole:
        yield from trained_by(role, found, adapted=adapted)
    else:
        yield from under_rules(gradients, layer, found)


def _trained_layers(
    config: RunConfig, share: Share, content: StageContent, role: Role, gradients: Gradients
) -> Iterator[Operation]:
    model, recompute = config.model, config.parallel.recompute
    if gradients.is_whole:
        yield from done_again(trained_by(role, _layers(model, share, content)), recompute)
        return
    for layer in range(content.start, content.stop):
        found = operations.layer(model, share, is_moe=layer >= model.first_k_dense_replace)
        again = recompute if gradients.in_layer(layer) else "none"
        yield from done_again(under_rules(gradients, layer, found), again)


def _entry(model: ModelConfig, share: Share, content: StageContent) -> Iterator[Operation]:
    if content.has_embedding:
        yield operations.embedding(model, share)


def _layers(model: ModelConfig, share: Share, content: StageContent) -> Iterator[Operation]:
    for number, is_moe in ((content.num_dense, False), (content.num_moe, True)):
        if number:
            yield from times(number, operations.layer(model, share, is_moe=is_moe))


def _exit(model: ModelConfig, share: Share, content: StageContent, has_vocabulary: bool) -> Iterator[Operation]:
    if content.has_head:
        yield operations.final_norm(model, share)
        if has_vocabulary:
            yield from operations.head(model, share)


def _mtp(
    config: RunConfig, share: Share, content: StageContent, role: Role, gradients: Gradients
) -> Iterator[Operation]:
    """Every depth looks its own tokens up, on the first stage; it has a layer and logits of its own on the last."""
    model, first = config.model, config.model.num_hidden_layers
    for layer in range(first, first + model.num_nextn_predict_layers):
        yield from _trained(role, gradients, 0, _entry(model, share, content), adapted=False)
        if content.num_mtp:
            inner = chain(operations.layer(model, share, is_moe=True), operations.mtp_entry(model, share))
            again = config.parallel.recompute if gradients.in_layer(layer) else "none"
            yield from done_again(_trained(role, gradients, layer, inner, adapted=False), again)
            yield from _trained(role, gradients, layer, operations.head(model, share), adapted=False)


def times(number: int, found: Iterable[Operation]) -> Iterator[Operation]:
    """Each operation this many times."""
    for operation in found:
        yield replace(operation, times=operation.times * number)


def model_flops(found: list[Operation]) -> int | Fraction:
    """What utilisation counts of a step."""
    return sum(operation.model_flops for operation in found)
