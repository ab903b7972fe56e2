"""`glmforge model`: what a model is and what it costs, from its configuration alone."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

app = typer.Typer(no_args_is_help=True, help="Show model configurations.")


@app.callback()
def _group() -> None:
    """Show model configurations."""


@app.command()
def show(
    model: Annotated[
        str,
        typer.Argument(help="A preset, the YAML file of a model or run, or a directory with a config.json."),
    ],
    lora: Annotated[
        str | None,
        typer.Option(
            metavar="rank=16,target=q_proj+v_proj",
            help="Also count adapters of this rank on these layers (also experts, shared_experts, self_attn, mlp).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Print a model's shape, parameters, training FLOPs per token and memory, without allocating it.

    Examples:

        glmforge model show glm46_355b

        glmforge model show runs/demo --json

        glmforge model show glm45_air_106b --lora rank=16,target=q_proj+k_proj+v_proj+o_proj
    """
    from glmforge.config import load_model_config
    from glmforge.config.lora import parse_lora
    from glmforge.plan.counts.adapter_summary import adapter_rows, summarise_adapters
    from glmforge.plan.counts.summary import architecture_rows, flop_rows, memory_rows, parameter_rows, summarise

    config = load_model_config(model)
    adapters = None if lora is None else summarise_adapters(config, parse_lora(lora))
    if as_json:
        found = summarise(config) | ({"lora": asdict(adapters)} if adapters else {})
        typer.echo(json.dumps(found, indent=2))
        return
    architecture = table("part", "")
    for name, words in architecture_rows(config):
        architecture.add_row(name, words)
    parameters = table("part", "count", "in short")
    for name, count in parameter_rows(config):
        parameters.add_row(name, f"{count:,}", _count(count))
    flops = table("sequence length", "without MTP", "with MTP")
    for length, without, with_mtp in flop_rows(config):
        flops.add_row(f"{length:,}", _flops(without), _flops(with_mtp))
    memory = table("part", "bytes", "in short")
    for name, size in memory_rows(config):
        memory.add_row(name, f"{size:,}", _bytes(size))
    console = Console()
    print_table("Architecture", architecture, console)
    print_table("Parameters", parameters, console)
    print_table("Training FLOPs per token", flops, console)
    print_table("Memory of the whole model, before sharding", memory, console)
    if adapters:
        trained = table("map", "adapters", "tensors", "trained", "in short", in_words=("map",))
        for name, maps, tensors, elements in adapter_rows(adapters):
            trained.add_row(name, f"{maps:,}", f"{tensors:,}", f"{elements:,}", _count(elements))
        print_table(f"LoRA of rank {adapters.rank}", trained, console)
        console.print(f"{adapters.share:.4%} of the model is trained", highlight=False)


def _count(number: float) -> str:
    return _scale(number, 1000, ["", "K", "M", "B", "T"])


def _flops(number: float) -> str:
    return _scale(number, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"])


def _bytes(size: float) -> str:
    return _scale(size, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"])


def _scale(number: float, base: int, units: list[str]) -> str:
    """Four significant digits and the unit that fits: 356.8 B, 232.3 GFLOP, 664.6 GiB."""
    power = 0
    while number >= base and power < len(units) - 1:
        number, power = number / base, power + 1
    return f"{number:.4g} {units[power]}".strip()
