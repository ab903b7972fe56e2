"""`glmforge train`: run a configuration."""

import gc
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand


class NamesStages(TyperCommand):
    """A command whose help ends with the stages that a run can train. They are looked up when help is requested."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from glmforge.config.stage import stage_lines

        self.epilog = "\n\n".join(["Stages (set in CONFIG as stage: NAME):", *stage_lines()])
        super().format_help(ctx, formatter)


def train(
    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Configuration overrides: key.sub=value ...")] = None,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="STEP",
            help="Resume from this step and set later checkpoints aside; short for fault_tolerance.resume=step-STEP.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if the plan says that the run does not fit into memory.")
    ] = False,
) -> None:
    """Train the model that CONFIG describes. Run it again to resume from the last checkpoint.

    Examples:

        glmforge train configs/demo.yaml

        glmforge train configs/demo.yaml --from 200

        glmforge train configs/demo.yaml name=longer optim.lr=1e-3 phases.0.steps=800

        torchrun --nproc-per-node 2 -m glmforge train configs/demo.yaml

        srun --nodes 2 --ntasks-per-node 8 glmforge train configs/demo.yaml

    Ctrl-C makes it save and end; a second Ctrl-C ends it at once. SIGTERM and SIGUSR1 make it save and end with
    status 75: start it again. See also 'glmforge control --help'.
    """
    from glmforge.runtime.interrupts import end_with_torchrun, ends_at_once
    from glmforge.runtime.launch import LaunchEnvironment

    end_with_torchrun()
    is_main = LaunchEnvironment.read().is_main
    with ends_at_once("interrupted; run it again to resume from the last checkpoint, if there is one", speaks=is_main):
        chosen = [] if from_step is None else [f"fault_tolerance.resume=step-{from_step}"]
        _train(config, [*(overrides or []), *chosen], force=force)


def _train(config: str, overrides: list[str], *, force: bool) -> None:
    from glmforge.config import load_config

    loaded = load_config(config, overrides)  # errors in it are reported before torch is imported

    from glmforge.observe.units import counted
    from glmforge.runtime.launch import LaunchEnvironment

    # Importing PyTorch makes a million objects, all of which stay. To look for garbage among them again and again takes
    # a sixth of the time that a rank needs until its first step.
    gc.disable()
    try:
        from glmforge.recipes.train import train as run
        from glmforge.training.errors import Preempted
    finally:
        gc.enable()

    console = Console(stderr=True, quiet=not LaunchEnvironment.read().is_main, soft_wrap=True)
    try:
        state = run(loaded, force=force)
    except Preempted as stop:
        console.print(f"glmforge: {stop}", highlight=False)
        raise typer.Exit(stop.exit_code) from None
    directory: Path = loaded.output_dir
    ending = f", stopped: {state.stopped}" if state.stopped else "" if state.is_done else ", stopped on request"
    console.print(
        f"[bold]{loaded.name}[/bold]: {counted(state.step, 'step')}, {state.tokens:,} tokens, in {directory}{ending}"
    )
    if state.is_done or state.stopped:
        console.print(f"Next: glmforge report {directory}    glmforge export {directory} {directory}/export")
