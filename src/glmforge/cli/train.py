"""`glmforge train`: run a configuration."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def train(
    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings to change: key.sub=value, any number of them.")
    ] = None,
) -> None:
    """Train a model as CONFIG says; the same command again goes on from the last checkpoint.

    Examples:

        glmforge train configs/demo.yaml

        glmforge train configs/demo.yaml name=longer optim.lr=1e-3 phases.0.steps=800

        torchrun --nproc-per-node 2 -m glmforge train configs/demo.yaml
    """
    from glmforge.config import load_config
    from glmforge.parallel.world import is_main_process
    from glmforge.recipes.pretrain import train as run

    loaded = load_config(config, overrides or [])
    state = run(loaded)
    directory: Path = loaded.output_dir
    console = Console(stderr=True)
    if is_main_process():
        console.print(f"[bold]{loaded.name}[/bold]: {state.step:,} steps, {state.tokens:,} tokens, in {directory}")
        console.print(f"Next: glmforge report {directory}    glmforge export {directory} {directory}/export")
