"""`glmforge plan --stage`: the models of a stage and what of them is trained."""

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.plan.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.stages.stage import Stage


def read_stage(name: str | None, lora: str | None, policy_models: str | None) -> "Stage":
    """The stage that the options `--stage`, `--lora` and `--policy-models` describe; pre-training without them."""
    from glmforge.errors import ConfigError
    from glmforge.plan.stages.lora import parse_lora
    from glmforge.plan.stages.stage import POLICY_MODELS, find_stage

    if policy_models is not None and name != "policy":
        raise ConfigError("--policy-models: says which models train a policy; add --stage policy")
    names = POLICY_MODELS if policy_models is None else [part for part in policy_models.split("+") if part != "actor"]
    return find_stage(name or "pretrain", parse_lora(lora) if lora is not None else None, names)


def show_stage(
    config: "RunConfig",
    layout: "Layout",
    stage: "Stage",
    machine: "Machine | None",
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Print its models, what a rank needs and sends, and with a machine how long a step takes."""
    from glmforge.plan.counts.stage_summary import stage_as_json, summarise_stage
    from glmforge.plan.memory.estimate import estimate_memory
    from glmforge.plan.time.step_time import predict_step
    from glmforge.plan.work.traffic import step_traffic

    phase = config.phases[0]
    rows = summarise_stage(config.model, config.optim, stage, phase.seq_len, phase.mtp_loss_weight > 0)
    memory, sent = estimate_memory(config, layout, stage), step_traffic(config, layout, stage=stage)
    time = predict_step(config, layout, machine, stage=stage) if machine else None
    if as_json:
        traffic = [{"axis": one.axis, "ranks": one.num_ranks, "bytes": one.bytes} for one in sent]
        found = stage_as_json(stage, rows) | {"peak_bytes": memory.peak, "traffic": traffic}
        if time:
            found |= {"seconds": time.seconds, "tokens_per_second": time.tokens_per_second, "mfu": time.utilisation}
        typer.echo(json.dumps(found, indent=2))
        return
    models = table("model", "parameters", "trained", "tensors", "weights", "gradients", "optimizer", "GFLOP/token")
    for row in rows:
        sizes = (row.state.weights, row.state.gradients, row.state.optimizer)
        counts = (f"{row.parameters:,}", f"{row.trained:,}", f"{row.trained_tensors:,}")
        models.add_row(
            row.name, *counts, *(f"{size / 1e9:,.2f}" for size in sizes), f"{row.flops_per_token / 1e9:,.1f}"
        )
    print_table(f"Models of stage {stage.name}, all ranks together (GB)", models, console)
    for one in sent:
        words = f"- {one.axis}: {one.bytes / 1e9:,.2f} GB in a step on a rank of the first pipeline stage"
        console.print(words, highlight=False)
    console.print(f"- The fullest rank needs {memory.peak / 1e9:,.1f} GB, by closed forms.", highlight=False)
    if time:
        console.print(
            f"- Predicted, not measured: {time.seconds:,.2f} s a step, {time.tokens_per_second:,.0f} tokens/s, "
            f"MFU {time.utilisation:.1%} of the stage's own FLOPs.",
            highlight=False,
        )
