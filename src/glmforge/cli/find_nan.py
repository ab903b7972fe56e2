"""`glmforge find-nan`: where a loss or gradient that is not finite came from."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from glmforge.doctor.find_nan import Finding


def find_nan(
    run: Annotated[Path, typer.Argument(help="Directory of a run; it is not written to.")],
    step: Annotated[
        int | None, typer.Option(min=1, help="Replay up to this step; default: the first that was not finite.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name the sample, layer and operation that made a loss or gradient NaN or infinite.

    Looks at the last whole checkpoint before that step (a weight or optimizer state may be the cause), then replays the
    steps since in one process, in a scratch directory. A run of many ranks must fit one process.

    Example:

        glmforge find-nan runs/demo
    """
    from glmforge.doctor.find_nan import find_nan as find

    console = Console(stderr=True, soft_wrap=True)
    with console.status("reading the run") as status:
        found = find(run, step, advance=status.update)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: "Finding") -> list[str]:
    from glmforge.files import escaped

    begin = found.checkpoint or "the run's beginning"
    if found.cause == "nothing":
        lines = [f"step {found.step:,}: nothing found in the replay from {begin}"]
    elif found.cause == "update":
        lines = [f"step {found.step:,}: the optimizer's update made values that are not finite, replayed from {begin}"]
    elif found.tensors:
        lines = [
            f"step {found.step:,}: {begin} already holds an {found.cause} that is not finite".replace("an w", "a w")
        ]
    else:
        lines = [f"step {found.step:,}: first in the {found.cause} pass, replayed from {begin}"]
    lines += [
        f"  {bad.name}{bad.element} is {bad.value}"
        + (f", and {bad.count - 1:,} more elements" if bad.count > 1 else "")
        for bad in found.tensors[:20]
    ]
    lines += [f"  and {len(found.tensors) - 20:,} more tensors"] if len(found.tensors) > 20 else []
    named = {"layer": found.module, "operation": found.operation, "line": found.line}
    lines += [f"  {name}: {value}" for name, value in named.items() if value]
    lines += [f"  sample: {json.dumps(sample)}" for sample in found.samples[:8]]
    lines += [f"  and {len(found.samples) - 8:,} more samples"] if len(found.samples) > 8 else []
    return [escaped(line) for line in [*lines, *(f"  note: {note}" for note in found.notes)]]
