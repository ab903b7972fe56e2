"""`glmforge experts`: usage, dead and similar experts, bias drift."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.doctor.experts import LayerExperts

_SHOWN = 8


def experts(
    source: Annotated[Path, typer.Argument(help="A run, a checkpoint, or RUN@STEP.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show for each layer how the experts are used, which are dead or alike, and how the routers' biases move.

    Loads are relative to the mean: 1 is balance. Nearly dead: less than a tenth of it. Similar: cosine of the weights.

    Example:

        glmforge experts runs/demo
    """
    from glmforge.doctor.experts import examine_experts

    console = Console(soft_wrap=True)
    with Console(stderr=True).status("reading") as status:
        report = examine_experts(source, advance=status.update)
    if as_json:
        typer.echo(json.dumps(report.as_json()))
        return
    words = ("dead", "nearly dead", "most similar")
    rows = table("layer", "least load", "most load", *words, "bias min", "bias max", "bias drift", in_words=words)
    for layer in report.layers:
        rows.add_row(*_row(layer))
    steps = report.load_steps
    loads = f"loads of {len(steps)} records, steps {steps[0]:,} to {steps[-1]:,}" if steps else "no loads recorded"
    weights = f"weights and biases of {report.checkpoint}" if report.checkpoint else "no checkpoint"
    drift = f", drift since {report.compared_with}" if report.compared_with else ""
    print_table(f"{loads}; {weights}{drift}", rows, console)


def _row(layer: "LayerExperts") -> list[str]:
    load = [f"{least:.2f}" for least in (min(layer.load_E), max(layer.load_E))] if layer.load_E else ["-", "-"]
    similar = ", ".join(f"{a} and {b}: {cosine:.3f}" for a, b, cosine in layer.similar or [])
    biases = ["-" if value is None else f"{value:.4g}" for value in (layer.bias_min, layer.bias_max, layer.bias_drift)]
    named = [_some(layer.dead), _some(layer.nearly_dead)] if layer.load_E else ["-", "-"]
    return [str(layer.layer), *load, *named, similar or "-", *biases]


def _some(numbers: list[int]) -> str:
    if not numbers:
        return "none"
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more
