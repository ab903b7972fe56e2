"""`glmforge plan --rollout`: how long rollouts take in an engine of their own."""

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.plan.serving import provenance_words
from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.cli.plan.serving import Service
    from glmforge.config.model import ModelConfig
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.serving.rollout import Rollout
    from glmforge.plan.stages.rollout_batch import RolloutBatch


def show_rollout(
    model: "ModelConfig", machine: "Machine", num_gpus: int, service: "Service", text: str, *, as_json: bool
) -> None:
    """Print the rollouts that `text` describes."""
    from glmforge.plan.serving.rollout import fastest_rollout, rollout_as_json
    from glmforge.plan.stages.rollout_batch import parse_rollout

    batch = parse_rollout(text)
    rollout = fastest_rollout(service.deployment(model, machine, 1, service.weights or "bf16"), num_gpus, batch)
    if as_json:
        typer.echo(json.dumps(rollout_as_json(rollout), indent=2))
    else:
        _print_rollout(rollout, batch, Console())


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
