"""`glmforge plan`: what a run will do, and what its layout is and takes, before anything is launched."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from glmforge.cli.plan.compare import other_run, show_comparison
from glmforge.cli.plan.dry_run import show_dry_run, take_dry_run
from glmforge.cli.plan.layout import print_layout, print_phases
from glmforge.cli.plan.roofline import show_roofline
from glmforge.cli.plan.summary import chosen_machine, plan_report, show_report

_MACHINE = "The machine"
_OUTPUT = "Output"


def plan(
    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings to change: key.sub=value, any number of them.")
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", "--gpus", min=1, help="Number of processes (GPUs); 1 if not given."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Say whether it fits such GPUs ('H100 SXM'), how long it takes and what it costs.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    nodes_of: Annotated[int, typer.Option(min=1, help="GPUs of a node.", rich_help_panel=_MACHINE)] = 8,
    network: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Between nodes, in Gb/s: ib400 and roce200 for each GPU, tcp30 for each node.",
            rich_help_panel=_MACHINE,
        ),
    ] = "ib400",
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write what --gpu shows, and more, as a page to play with (.html).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Plan this run too, on the same machine, and show both: a YAML file, or 'other.yaml parallel.tp=2'.",
            rich_help_panel=_OUTPUT,
        ),
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
    gpu_memory: Annotated[float, typer.Option(help="Memory of a GPU in GB, 10^9 bytes, if no --gpu says it.")] = 80.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Say what a run will do and what its layout takes, before anything is launched.

    Prints the phases of CONFIG and how it lies on that many GPUs; with --dry-run, what each kind of rank holds, needs
    and communicates; with --schedule, draws learning rate, batches, mixture and all else over tokens. Neither data nor
    a GPU is needed; where token shards exist, the schedule shows what is really drawn from them.

    With --gpu, answers whether the run fits that many of such GPUs, how long it takes, what it costs, and what its
    steps spend their time on; with --page, on a page as well, on which GPUs, network, batch and prices can be changed.

    With --roofline, lists what a rank's step computes, operation by operation, with the least time that a GPU of that
    name (as the driver gives it, such as "NVIDIA H200") can take for it, and the time expected of eager torch, of
    compiled layers and of Triton's kernels. A GPU that is not known gets no times.

    Examples:

        glmforge plan configs/pretrain_glm45_355b.yaml --schedule schedule.html

        glmforge plan configs/pretrain_glm45_355b_guide.yaml --world-size 8192

        glmforge plan configs/pretrain_glm45_355b_guide.yaml parallel.tp=4 --world-size 8192 --rank 0 --dry-run

        glmforge plan configs/pretrain_glm45_air_106b.yaml --gpus 1024 --gpu "H100 SXM" --page plan.html

        glmforge plan configs/small_1b.yaml --roofline "NVIDIA H200"
    """
    from glmforge.config import load_config
    from glmforge.config.layout import resolve_layout
    from glmforge.plan.layout import phases_not_served, select_phase

    machine = chosen_machine(gpu, network, nodes_of, {"--page": page, "--compare": compare})
    loaded = load_config(config, overrides or [])
    other = other_run(compare) if compare is not None else None
    console, errors = Console(), Console(stderr=True)
    if not as_json and not dry_run and roofline is None and machine is None:
        print_phases(loaded, console)
    if schedule is not None:
        from glmforge.report.schedule_page import write_schedule

        written = write_schedule(loaded, schedule)
        Console(stderr=as_json).print(f"{written}", highlight=False, soft_wrap=True)
        if world_size is None and not dry_run and machine is None:
            return
    world_size = world_size or 1
    whole, loaded = loaded, select_phase(loaded, phase)
    layout = resolve_layout(whole, world_size, phase=phase)
    if phase is not None:
        for reason in phases_not_served(whole, world_size, phase):
            errors.print(reason, highlight=False, soft_wrap=True)
    if roofline is not None:
        show_roofline(loaded, layout, (rank or 0) // layout.stage_ranks, roofline, as_json=as_json)
        return
    if not dry_run and machine is None:
        print_layout(loaded, layout, console, as_json=as_json)
        return
    take = partial(
        take_dry_run,
        world_size=world_size,
        rank=rank,
        imbalance=imbalance,
        progress=lambda line: errors.print(line, highlight=False),
    )
    found = take(loaded) if dry_run else None
    if machine is None:
        assert found is not None, "without a machine this is a dry run"
        show_dry_run(found, layout, gpu_memory, console, as_json=as_json)
        return
    report = plan_report(whole, loaded, layout, machine, found)
    if other is None:
        show_report(report, console, page=page, as_json=as_json)
        return
    selected = select_phase(other, phase)
    other_layout = resolve_layout(other, world_size, phase=phase)
    second = plan_report(other, selected, other_layout, machine, take(selected) if dry_run else None)
    show_comparison(report, second, console, page=page, as_json=as_json)
