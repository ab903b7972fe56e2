"""`glmforge plan`: what a run will do, and what its layout is and takes, before anything is launched."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from glmforge.cli.plan.dry_run import take_dry_run
from glmforge.cli.plan.layout import print_layout, print_phases
from glmforge.cli.plan.roofline import show_roofline
from glmforge.cli.plan.search import search as search_best


def plan(
    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings to change: key.sub=value, any number of them.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", "--gpus", min=1, help="Number of processes (GPUs); 1 if not given.")
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Draw the whole schedule: a page (.html) or a picture (.png, .svg)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Take one step of the real sharded model on tensors without memory.")
    ] = False,
    phase: Annotated[
        str | None,
        typer.Option(help="The phase to plan, the only one the layout has to work for. Default: the first, and all."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Of this rank alone: the dry run, the roofline.")] = None,
    imbalance: Annotated[
        float, typer.Option(help="Rows that an expert-parallel rank gets, as a multiple of an even share.")
    ] = 1.0,
    roofline: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="Of each operation of a rank's step: FLOPs, bytes, and the least and the expected time on this GPU.",
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Find the layout that is fastest on these GPUs and fits them, and write it as a file.",
            rich_help_panel="Machine and search",
        ),
    ] = False,
    winner: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where --search writes the layout it found. Default: NAME_Ngpus.yaml here.",
            rich_help_panel="Machine and search",
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="The GPU, such as h100-80gb.", rich_help_panel="Machine and search")
    ] = None,
    nodes_of: Annotated[int, typer.Option(min=1, help="GPUs in a node.", rich_help_panel="Machine and search")] = 8,
    network: Annotated[
        str,
        typer.Option(
            help="Between nodes: ib400, roce200 (Gb/s for each GPU), tcp30 (for each node).",
            rich_help_panel="Machine and search",
        ),
    ] = "ib400",
    gpu_memory: Annotated[float, typer.Option(help="Memory of a GPU in GB, 10^9 bytes.")] = 80.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say what a run will do and what its layout takes, before anything is launched.

    Prints the phases of CONFIG and how it lies on that many GPUs; with --dry-run, what each kind of rank holds, needs
    and communicates; with --schedule, draws learning rate, batches, mixture and all else over tokens. Neither data nor
    a GPU is needed; where token shards exist, the schedule shows what is really drawn from them.

    With --roofline, lists what a rank's step computes, operation by operation, with the least time that a GPU of that
    name (as the driver gives it, such as "NVIDIA H200") can take for it, and the time expected of eager torch, of
    compiled layers and of Triton's kernels. A GPU that is not known gets no times.

    Examples:

        glmforge plan configs/pretrain_glm45_355b.yaml --schedule schedule.html

        glmforge plan configs/pretrain_glm45_355b_guide.yaml --world-size 8192

        glmforge plan configs/pretrain_glm45_355b_guide.yaml parallel.tp=4 --world-size 8192 --rank 0 --dry-run

        glmforge plan configs/small_1b.yaml --roofline "NVIDIA H200"
    """
    from glmforge.config import load_config
    from glmforge.config.layout import resolve_layout
    from glmforge.errors import ConfigError
    from glmforge.plan.layout import phases_not_served, select_phase
    from glmforge.plan.machine.machine import find_machine
    from glmforge.plan.search.propose import with_proposal
    from glmforge.plan.search.warnings import layout_warnings

    loaded = load_config(config, overrides or [])
    console = Console()
    if not as_json and not dry_run and roofline is None:
        print_phases(loaded, console)
    if schedule is not None:
        from glmforge.report.schedule_page import write_schedule

        written = write_schedule(loaded, schedule)
        Console(stderr=as_json).print(f"{written}", highlight=False, soft_wrap=True)
        if world_size is None and not dry_run:
            return
    world_size = world_size or 1
    whole, loaded = loaded, select_phase(loaded, phase)
    machine = find_machine(gpu, network, nodes_of) if gpu else None
    if search:
        if machine is None:
            raise ConfigError("--search: needs to know the GPU; give --gpu, such as --gpu h100-80gb")
        search_best(
            whole,
            world_size,
            machine,
            phase=phase,
            source=config,
            overrides=overrides or [],
            winner=winner,
            as_json=as_json,
        )
        return
    try:
        layout = resolve_layout(whole, world_size, phase=phase)
    except ConfigError as error:
        raise with_proposal(error, whole, world_size, machine, phase) from None
    for warning in layout_warnings(loaded, layout, machine):
        Console(stderr=True).print(f"warning: {warning}", highlight=False, soft_wrap=True)
    if phase is not None:
        for reason in phases_not_served(whole, world_size, phase):
            Console(stderr=True).print(reason, highlight=False, soft_wrap=True)
    if roofline is not None:
        show_roofline(loaded, layout, (rank or 0) // layout.stage_ranks, roofline, as_json=as_json)
        return
    if not dry_run:
        print_layout(loaded, layout, console, as_json=as_json)
        return
    errors = Console(stderr=True)
    take_dry_run(
        loaded,
        layout,
        console,
        gpu_memory,
        as_json=as_json,
        world_size=world_size,
        rank=rank,
        imbalance=imbalance,
        progress=lambda line: errors.print(line, highlight=False),
    )
