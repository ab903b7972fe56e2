"""`glmforge serve` with another engine: what is planned, the command, and the command's start."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer
from rich.console import Console

from glmforge.cli.serve_options import Options
from glmforge.cli.tables import print_table, table
from glmforge.errors import GlmforgeError

if TYPE_CHECKING:
    from glmforge.deploy.engines import EngineName
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.serving.scenario import ServingPlan


class Elsewhere(NamedTuple):
    """The options of a service on another engine."""

    engine: "EngineName"
    scenario: str
    host: str
    port: int
    name: str
    gpu: str | None
    num_gpus: int | None
    weights: str | None
    context: int | None
    length: int


def serve_elsewhere(options: Options) -> None:
    """Plan the service, and start it, show it, or write files that start it."""
    asked = Elsewhere(
        options.engine.value,
        options.scenario.value,
        options.host,
        options.port,
        options.served_as,
        options.gpu,
        options.num_gpus,
        options.weights,
        options.context,
        options.length,
    )
    plan, command = plan_elsewhere(options.model, asked)
    if options.write_deployment is not None:
        from glmforge.deploy.deployment_files import write_deployment

        for path in write_deployment(
            options.write_deployment,
            asked.engine,
            command,
            options.model,
            name=asked.name.lower(),
            port=asked.port,
            num_gpus=plan.num_gpus,
            overwrite=options.force,
        ):
            typer.echo(str(path))
    elif options.dry_run:
        show_plan(plan, command, asked)
    else:
        start(command, asked.engine)


def plan_elsewhere(model: Path, asked: Elsewhere) -> "tuple[ServingPlan, list[str]]":
    """The plan and the command. Raises `ConfigError` for what does not fit, `GlmforgeError` without a GPU."""
    from glmforge.deploy.engines import engine_command
    from glmforge.deploy.served_model import served_model
    from glmforge.plan.serving.formats import find_format
    from glmforge.plan.serving.scenario import find_goal, plan_serving

    config, stored = served_model(model)
    machine, num_gpus = _machine(asked)
    context = asked.context or config.max_position_embeddings
    plan = plan_serving(
        find_goal(asked.scenario),
        config,
        machine,
        num_gpus,
        find_format(asked.weights or stored),
        context=context,
        length=min(asked.length, context),
        by_layers=asked.engine == "llama.cpp",
    )
    return plan, engine_command(asked.engine, str(model), asked.name, plan, host=asked.host, port=asked.port)


def _machine(asked: Elsewhere) -> "tuple[Machine, int]":
    """The one named, or that of this machine's GPUs."""
    from glmforge.plan.machine.hardware import find_accelerator
    from glmforge.plan.machine.machine import find_machine

    if asked.gpu is not None:
        return find_machine(asked.gpu), asked.num_gpus or 1
    import torch

    number = torch.cuda.device_count()
    if number == 0:
        raise GlmforgeError(
            f"--engine {asked.engine}: this machine has no GPU; name the ones to plan for, such as "
            "--gpu h100-80gb --gpus 8, or use --engine native"
        )
    name = torch.cuda.get_device_name(0)
    accelerator = find_accelerator(name)
    if accelerator is None:
        raise GlmforgeError(f"--gpu: '{name}' is unknown; pass --gpu with a name or a YAML file")
    return find_machine(accelerator.name), asked.num_gpus or number


def show_plan(plan: "ServingPlan", command: list[str], asked: Elsewhere) -> None:
    """Settings, memory and speed as planned, and the command."""
    from glmforge.cli.plan.serving import provenance_words
    from glmforge.deploy.engines import KEY_VARIABLES, as_shell
    from glmforge.plan.serving.deployment import MEMORY_SHARE

    served, step = plan.deployment, plan.step
    device = served.machine.accelerator
    cache = plan.context * served.cache_bytes_per_token
    rows = table("", "", in_words=("", ""))
    for words in (
        ("scenario", f"{plan.goal.name}: {plan.goal.words}"),
        ("copies", f"{plan.num_copies:,} of {served.num_gpus:,} x {device.name}"),
        ("weights", f"{served.weight_bytes / 1e9:,.1f} GB in {served.weights.name}"),
        (
            "cache",
            f"{served.cache_room / 1e9:,.1f} GB in {served.cache}; a sequence of {plan.context:,} tokens takes "
            f"{cache / 1e9:,.2f} GB",
        ),
        ("sequences at once", f"{plan.max_sequences:,} of each copy"),
        ("tokens in a step", f"{plan.chunk:,}; longer prompts are computed in chunks"),
        ("prefixes", "cached"),
        ("drafts", f"MTP, {served.acceptance:.0%} assumed to stand" if served.acceptance is not None else "none"),
        ("time per token", f"{1000 * step.seconds_per_token:,.1f} ms with all of them, bound by {step.bottleneck}"),
        ("speed", f"{plan.tokens_per_second:,.0f} tokens/s of all copies"),
    ):
        rows.add_row(*words)
    console = Console()
    print_table(f"{asked.name} by {asked.engine}", rows, console)
    console.print(
        f"- {MEMORY_SHARE:.0%} of the memory is for weights and caches. {provenance_words(served.machine)}",
        highlight=False,
        soft_wrap=True,
    )
    variable = KEY_VARIABLES.get(asked.engine)
    typer.echo(as_shell(command, {variable: "..."} if variable else None))


def start(command: list[str], engine: "EngineName") -> None:
    """Become the engine. Raises `GlmforgeError` if it is not installed."""
    from glmforge.deploy.engines import refuse_missing

    refuse_missing(engine)
    os.execvp(command[0], command)
