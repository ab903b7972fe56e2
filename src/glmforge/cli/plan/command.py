"""`glmforge plan`: what a run will do, and what its layout is and takes, before anything is launched."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from glmforge.cli.plan.compare import other_run, show_comparison
from glmforge.cli.plan.cost import check_cost_options, show_cost
from glmforge.cli.plan.dry_run import show_dry_run, take_dry_run
from glmforge.cli.plan.layout import checked_layout, draw_schedule, print_layout, print_phases
from glmforge.cli.plan.rollout import show_policy_step, show_rollout
from glmforge.cli.plan.roofline import show_roofline
from glmforge.cli.plan.search import search as search_best
from glmforge.cli.plan.serving import Service, check_serving_options, show_serving
from glmforge.cli.plan.sheet import show_sheet
from glmforge.cli.plan.stage import check_dry_run, read_stage, show_stage
from glmforge.cli.plan.summary import check_output_options, chosen_machine, plan_report, show_report

_MACHINE, _COST, _STAGES, _SERVING = "The machine", "Cost of the whole run", "Stages", "Serving and rollouts"
_OUTPUT = "Output"


def plan(
    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings to change: key.sub=value, any number of them.")
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", "--gpus", min=1, max=2**20, help="Number of processes (GPUs); 1 if not given."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Say whether it fits such GPUs (h100-80gb, or a YAML file), how long it takes and what it costs.",
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
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Predict from points that were measured: matmuls, copies, collectives (JSON, see docs/plan.md). "
            "They come before what is known of --gpu.",
            rich_help_panel=_MACHINE,
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
        float, typer.Option(min=1, help="Rows that an expert-parallel rank gets, as a multiple of an even share.")
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
            rich_help_panel=_MACHINE,
        ),
    ] = False,
    winner: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where --search writes the layout it found. Default: NAME_Ngpus.yaml here.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    gpu_memory: Annotated[float, typer.Option(help="Memory of a GPU in GB, 10^9 bytes, if no --gpu says it.")] = 80.0,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost",
            help="Days, GPU-hours, energy, dollars, storage, traffic and failures of all phases on GPUs of a kind.",
            rich_help_panel=_COST,
        ),
    ] = False,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS",
            help="For a GPU-hour; or settings of the cost, name=value,name=value or a YAML file of them.",
            rich_help_panel=_COST,
        ),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Instead of the prediction, such as 0.3.", rich_help_panel=_COST),
    ] = None,
    sheet: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A budget of users' guides (guide, guide-64), and what it implies for this run.",
            rich_help_panel=_COST,
        ),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            help="What is trained: pretrain, finetune, lora, reward, policy. Default: pretrain.",
            rich_help_panel=_STAGES,
        ),
    ] = None,
    lora: Annotated[
        str | None,
        typer.Option(
            metavar="rank=16,target=q_proj+v_proj",
            help="Train adapters of this rank on these maps (also experts, shared_experts, self_attn, mlp).",
            rich_help_panel=_STAGES,
        ),
    ] = None,
    policy_models: Annotated[
        str | None,
        typer.Option(
            metavar="actor+reference+critic+reward",
            help="The models of --stage policy. Default: all four, as PPO has them; GRPO without KL has an actor.",
            rich_help_panel=_STAGES,
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Does the model fit as a service, and how fast is it?", rich_help_panel=_SERVING),
    ] = False,
    rollout: Annotated[
        str | None,
        typer.Option(
            metavar="prompts=64,samples=8,prompt=1024,response=8192",
            help="Time a policy's rollouts; with --stage policy a whole step. Tokens are means, longest= is the cut.",
            rich_help_panel=_SERVING,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Format to serve in: bf16, fp8, int8, int4, q4_0 ... Default: all.", rich_help_panel=_SERVING
        ),
    ] = None,
    cache: Annotated[str, typer.Option(help="Format of caches: bf16 or fp8.", rich_help_panel=_SERVING)] = "bf16",
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Longest sequence to serve. Default: the model's.", rich_help_panel=_SERVING),
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Mean tokens of a sequence.", rich_help_panel=_SERVING)] = 8192,
    latency: Annotated[
        float, typer.Option(min=0.001, help="Milliseconds per token at most.", rich_help_panel=_SERVING)
    ] = 50.0,
    acceptance: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Draft with MTP; this share of drafts stands.", rich_help_panel=_SERVING),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write what --gpu or --search shows, and more, as a page to play with (.html).",
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

    With --cost, says what the whole run takes on GPUs of a kind (--gpu): predicted days, failures and the work that
    they undo, GPU-hours, energy, dollars, checkpoints on the disks. What is assumed for it is listed, and can be given.

    With --roofline, lists what a rank's step computes, operation by operation, with the least time that a GPU of that
    name (as the driver gives it, such as "NVIDIA H200") can take for it, and the time expected of eager torch, of
    compiled layers and of Triton's kernels. A GPU that is not known gets no times.

    Examples:

        glmforge plan configs/pretrain_glm45_355b.yaml --schedule schedule.html

        glmforge plan configs/pretrain_glm45_355b_guide.yaml --world-size 8192

        glmforge plan configs/pretrain_glm45_355b_guide.yaml parallel.tp=4 --world-size 8192 --rank 0 --dry-run

        glmforge plan configs/pretrain_glm45_air_106b.yaml --gpus 1024 --gpu h100-80gb --page plan.html

        glmforge plan configs/small_1b.yaml --roofline "NVIDIA H200"

        glmforge plan configs/scaled_down_64gpu.yaml --gpus 64 --gpu "H100 SXM" --cost --price 2.50

        glmforge plan configs/pretrain_glm45_355b_guide.yaml --sheet guide

        glmforge plan configs/scaled_down_64gpu.yaml --world-size 64 --lora rank=16,target=self_attn+experts

        glmforge plan configs/pretrain_glm46_355b.yaml --serve --gpus 8 --gpu "H200 SXM" --weights fp8
    """
    from glmforge.config import load_config
    from glmforge.plan.layout import select_phase

    needed: dict[str, object | None] = {"--page": page, "--compare": compare, "--rollout": rollout}
    flags = {"--serve": serve, "--search": search, "--cost": cost}
    needed |= {name: flag or None for name, flag in flags.items()}
    machine = chosen_machine(gpu, network, nodes_of, calibrate, needed)
    loaded = load_config(config, overrides or [])
    other = other_run(compare) if compare is not None else None
    console, errors = Console(), Console(stderr=True)
    chosen = read_stage(stage, lora, policy_models)
    if dry_run:
        check_dry_run(chosen)
    check_cost_options(
        cost=cost,
        sheet=sheet,
        given={"--gpus": world_size, "--gpu": gpu, "--price": price, "--mfu": mfu, "--dry-run": dry_run}
        | {"--roofline": roofline, "--schedule": schedule, "--search": search, "--serve": serve}
        | {"--page": page, "--compare": compare, "--rollout": rollout},
    )
    check_serving_options(
        serve=serve,
        rollout=rollout,
        stage=chosen.name,
        given={"--weights": weights, "--acceptance": acceptance, "--context": context, "--search": search}
        | {"--page": page, "--compare": compare, "--dry-run": dry_run, "--roofline": roofline, "--schedule": schedule},
    )
    check_output_options(page, compare, search=search, roofline=roofline)
    if sheet is not None:
        show_sheet(sheet, loaded, network, console, as_json=as_json)
        return
    if cost and machine is not None:
        costed = loaded if phase is None else select_phase(loaded, phase)
        show_cost(costed, world_size or 1, machine, price, mfu, chosen, imbalance, console, as_json=as_json)
        return
    service = Service(weights, cache, acceptance, context, length, latency)
    if serve and machine is not None:
        show_serving(loaded.model, machine, world_size or 1, service, as_json=as_json)
        return
    if rollout is not None and machine is not None and chosen.name != "policy":
        show_rollout(loaded.model, machine, world_size or 1, service, rollout, as_json=as_json)
        return
    if not as_json and not dry_run and roofline is None and machine is None:
        print_phases(loaded, console)
    if schedule is not None:
        draw_schedule(loaded, schedule, Console(stderr=as_json))
        if world_size is None and not dry_run and machine is None:
            return
    world_size = world_size or 1
    whole, loaded = loaded, select_phase(loaded, phase)
    if search and machine is not None:
        search_best(
            whole,
            world_size,
            machine,
            phase=phase,
            stage=chosen,
            source=config,
            overrides=overrides or [],
            winner=winner,
            page=page,
            price=price,
            as_json=as_json,
        )
        return
    layout = checked_layout(whole, world_size, phase, machine, errors)
    if roofline is not None:
        show_roofline(loaded, layout, (rank or 0) // layout.stage_ranks, roofline, chosen, as_json=as_json)
        return
    if rollout is not None and machine is not None:
        show_policy_step(loaded, layout, chosen, machine, service, rollout, as_json=as_json)
        return
    is_stage = stage is not None or lora is not None
    if machine is None and not dry_run:
        if not (is_stage and as_json):
            print_layout(loaded, layout, console, as_json=as_json)
        if is_stage:
            show_stage(loaded, layout, chosen, console, as_json=as_json)
        return
    take = partial(
        take_dry_run,
        world_size=world_size,
        rank=rank,
        imbalance=imbalance,
        progress=lambda line: errors.print(line, highlight=False),
    )
    if machine is None:
        show_dry_run(take(loaded), layout, gpu_memory, console, as_json=as_json)
        return
    plan_run = partial(plan_report, phase, world_size, machine, chosen, price, imbalance, take if dry_run else None)
    report = plan_run(whole)
    if other is None:
        show_report(report, console, page=page, as_json=as_json)
    else:
        show_comparison(report, plan_run(other), console, page=page, as_json=as_json)
