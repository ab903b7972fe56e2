"""`glmforge plan --stage`: the models of a stage and what of them is trained."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig
    from glmforge.plan.counts.stage_summary import RoleSummary
    from glmforge.plan.stages.stage import TrainingStage


def read_stage(name: str | None, lora: str | None, rollout: str | None, config: "RunConfig") -> "TrainingStage":
    """The stage that `config` says, or what the options `--stage` and `--lora` describe; `--rollout` with other lengths
    of what it samples, if it does.

    Raises `ConfigError` for one that is not known, or that another configuration would say, and for adapters of what is
    no map of the model.
    """
    from glmforge.config.adapters import adapted_maps
    from glmforge.config.lora import parse_lora
    from glmforge.config.stage import STAGES
    from glmforge.errors import ConfigError
    from glmforge.plan.stages.rollout_batch import parse_rollout
    from glmforge.plan.stages.stage import find_stage, stage_of

    if name in STAGES and name != config.stage:
        raise ConfigError(f"--stage: the configuration says '{config.stage}'; use stage={name} instead")
    if name is None and lora is None:
        stage = stage_of(config)
    else:
        adapters = config.lora if lora is None else parse_lora(lora)
        if adapters is not None:
            adapted_maps(config.model, adapters)
        stage = find_stage(name or config.stage, adapters, config)
    if rollout is None or stage.rollout is None:
        return stage
    return replace(stage, rollout=parse_rollout(rollout, stage.rollout))


def check_dry_run(stage: "TrainingStage", config: "RunConfig") -> None:
    """Raises `ConfigError` for a stage that is not what `config` trains, whose step no dry run can take."""
    from glmforge.errors import ConfigError
    from glmforge.plan.stages.stage import stage_of

    of_run = stage.is_plain or stage.roles == stage_of(config).roles
    if of_run and len(stage.roles) > 1 and stage.name != "rl":
        names = ", ".join(role.name for role in stage.roles)
        raise ConfigError(f"--dry-run: runs the step of one model, but stage {stage.name} has several: {names}")
    if not of_run:
        raise ConfigError(f"--dry-run: runs the configuration's own stage, not stage {stage.name}; remove it")


def show_stage(
    config: "RunConfig", layout: "Layout", stage: "TrainingStage", console: Console, *, as_json: bool
) -> None:
    """Print its models, and what a rank needs and sends."""
    from glmforge.plan.counts.stage_summary import stage_as_json, summarise_stage
    from glmforge.plan.memory.estimate import estimate_memory
    from glmforge.plan.work.traffic import step_traffic

    phase = config.phases[0]
    rows = summarise_stage(config.model, config.optim, stage, phase.seq_len, phase.mtp_loss_weight > 0)
    memory, sent = estimate_memory(config, layout, stage), step_traffic(config, layout, stage=stage)
    if as_json:
        traffic = [{"axis": one.axis, "ranks": one.num_ranks, "bytes": one.bytes} for one in sent]
        found = stage_as_json(stage, rows) | {"peak_bytes": memory.peak, "traffic": traffic}
        typer.echo(json.dumps(found, indent=2))
        return
    print_models(stage, rows, console)
    for one in sent:
        words = f"- {one.axis}: {one.bytes / 1e9:,.2f} GB in a step on a rank of the first pipeline stage"
        console.print(words, highlight=False)
    console.print(f"- The fullest rank needs {memory.peak / 1e9:,.1f} GB, by closed forms.", highlight=False)


def print_models(stage: "TrainingStage", rows: "list[RoleSummary]", console: Console) -> None:
    """The models of a stage as a table."""
    models = table("model", "parameters", "trained", "tensors", "weights", "gradients", "optimizer", "GFLOP/token")
    for row in rows:
        sizes = (row.state.weights, row.state.gradients, row.state.optimizer)
        counts = (f"{row.parameters:,}", f"{row.trained:,}", f"{row.trained_tensors:,}")
        gigabytes = (f"{size / 1e9:,.2f}" for size in sizes)
        models.add_row(row.name, *counts, *gigabytes, f"{row.flops_per_token / 1e9:,.1f}")
    print_table(f"Models of stage {stage.name}, all ranks together (GB)", models, console)
