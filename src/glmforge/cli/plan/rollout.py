"""`glmforge plan --rollout`: how long a policy's rollouts take, and with `--stage policy` the whole step."""

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.plan.serving import provenance_words
from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.cli.plan.serving import Service
    from glmforge.config.layout import Layout
    from glmforge.config.model import ModelConfig
    from glmforge.config.schema import RunConfig
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.serving.policy_step import PolicyStep
    from glmforge.plan.serving.rollout import Rollout, RolloutBatch
    from glmforge.plan.stages.stage import TrainingStage


def show_rollout(
    model: "ModelConfig", machine: "Machine", num_gpus: int, service: "Service", text: str, *, as_json: bool
) -> None:
    """Print the rollouts that `text` describes."""
    from glmforge.plan.serving.policy_step import rollout_as_json
    from glmforge.plan.serving.rollout import fastest_rollout, parse_rollout

    batch = parse_rollout(text)
    rollout = fastest_rollout(service.deployment(model, machine, 1, service.weights or "bf16"), num_gpus, batch)
    if as_json:
        typer.echo(json.dumps(rollout_as_json(rollout), indent=2))
    else:
        _print_rollout(rollout, batch, Console())


def show_policy_step(
    config: "RunConfig",
    layout: "Layout",
    stage: "TrainingStage",
    machine: "Machine",
    service: "Service",
    text: str,
    *,
    as_json: bool,
) -> None:
    """Print the rollouts, and the step of training a policy that they are part of."""
    from glmforge.plan.serving.policy_step import plan_policy_step, policy_step_as_json
    from glmforge.plan.serving.rollout import parse_rollout
    from glmforge.plan.time.step_time import predict_step

    batch, trained = parse_rollout(text), predict_step(config, layout, machine, stage=stage)
    deployment = service.deployment(config.model, machine, 1, service.weights or "bf16")
    step = plan_policy_step(deployment, layout.world_size, batch, stage, 1 / trained.tokens_per_second)
    if as_json:
        typer.echo(json.dumps(policy_step_as_json(step), indent=2))
        return
    console = Console()
    _print_rollout(step.rollout, batch, console)
    _print_step(step, console)


def _print_rollout(rollout: "Rollout", batch: "RolloutBatch", console: Console) -> None:
    rows = table(
        "copies", "GPUs of each", "sequences at once", "prefill, s", "generate, s", "longest, s", "all, s", "tokens/s"
    )
    seconds = (f"{part:,.1f}" for part in (rollout.prefill, rollout.generate, rollout.tail, rollout.seconds))
    rows.add_row(
        f"{rollout.replicas:,}",
        f"{rollout.deployment.num_gpus:,}",
        f"{rollout.batch:,}",
        *seconds,
        f"{rollout.tokens_per_second:,.0f}",
    )
    device, weights = rollout.deployment.machine.accelerator.name, rollout.deployment.weights.name
    title = f"{batch.sequences:,} responses on {rollout.num_gpus:,} x {device}, weights in {weights}"
    print_table(title, rows, console)
    console.print(f"- {provenance_words(rollout.deployment.machine)}", highlight=False, soft_wrap=True)


def _print_step(step: "PolicyStep", console: Console) -> None:
    from glmforge.plan.time.overheads import INTERVAL

    console.print(
        f"- On the same GPUs a step takes {step.seconds:,.0f} s: {step.rollout.seconds:,.0f} s generating, "
        f"{step.train:,.0f} s training on {step.batch.tokens:,} tokens (within a factor of {INTERVAL:.2f} in four of "
        f"five cases), {step.send:,.1f} s sending weights.",
        highlight=False,
        soft_wrap=True,
    )
    if step.split is None:
        console.print("- Too few GPUs to split into generating and training ones.", highlight=False)
        return
    split = step.split
    console.print(
        f"- Side by side, {split.generating:,} GPUs generate in {split.generate:,.0f} s while {split.training:,} train "
        f"in {split.train:,.0f} s.",
        highlight=False,
        soft_wrap=True,
    )
