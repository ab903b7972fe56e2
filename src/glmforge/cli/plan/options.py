"""The options of `glmforge plan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_MACHINE, _COST, _STAGES, _SERVING = "The machine", "Cost of the whole run", "Stages", "Serving and rollouts"
_OUTPUT = "Output"


@dataclass(frozen=True)
class PlanOptions:
    """What the command is given."""

    config: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a packaged run.")]
    overrides: Annotated[list[str] | None, typer.Argument(help="Configuration overrides: key.sub=value ...")] = None
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", "--gpus", min=1, max=2**20, help="Number of processes (GPUs); default 1."),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="GPU (h100-80gb, or a YAML file): report whether the run fits, how long it takes and what it costs.",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    nodes_of: Annotated[int, typer.Option(min=1, help="GPUs per node.", rich_help_panel=_MACHINE)] = 8
    network: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Network between nodes, in Gb/s: ib400 and roce200 per GPU, tcp30 per node.",
            rich_help_panel=_MACHINE,
        ),
    ] = "ib400"
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Predict from measured matmuls, copies and collectives (JSON, see docs/plan.md). Overrides the data "
            "of --gpu.",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Draw the schedule as a page (.html) or picture (.png, .svg)."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run one step of the real sharded model on fake tensors.")
    ] = False
    phase: Annotated[
        str | None,
        typer.Option(
            help="Phase to plan; the layout must work for this phase only. Default: plan the first phase, check all."
        ),
    ] = None
    rank: Annotated[int | None, typer.Option(help="Only this rank, for --dry-run and --roofline.")] = None
    imbalance: Annotated[
        float, typer.Option(min=1, help="Token rows on the fullest expert-parallel rank, relative to an even share.")
    ] = 1.0
    roofline: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="Show FLOPs, bytes, and minimum and expected time of each operation on this GPU.",
        ),
    ] = None
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Find the fastest layout that fits these GPUs, and write it to a file.",
            rich_help_panel=_MACHINE,
        ),
    ] = False
    winner: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file of --search. Default: ./NAME_Ngpus.yaml.",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    gpu_memory: Annotated[float, typer.Option(help="Memory per GPU in GB (10^9 bytes), without --gpu.")] = 80.0
    cost: Annotated[
        bool,
        typer.Option(
            "--cost",
            help="Show days, GPU-hours, energy, dollars, storage, traffic and failures of all phases.",
            rich_help_panel=_COST,
        ),
    ] = False
    price: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS",
            help="Dollars per GPU-hour; or cost settings as name=value,name=value or a YAML file.",
            rich_help_panel=_COST,
        ),
    ] = None
    mfu: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="MFU to assume instead of the prediction, such as 0.3.", rich_help_panel=_COST
        ),
    ] = None
    sheet: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A budget from the user guides (guide, guide-64), and what it implies for this run.",
            rich_help_panel=_COST,
        ),
    ] = None
    stage: Annotated[
        str | None,
        typer.Option(
            help="Stage to plan: the configuration's, the default, or lora.",
            rich_help_panel=_STAGES,
        ),
    ] = None
    lora: Annotated[
        str | None,
        typer.Option(
            metavar="rank=16,target=q_proj+v_proj",
            help="Train adapters of this rank on these layers (also experts, shared_experts, self_attn, mlp).",
            rich_help_panel=_STAGES,
        ),
    ] = None
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Plan serving: does the model fit, and how fast is it?", rich_help_panel=_SERVING),
    ] = False
    rollout: Annotated[
        str | None,
        typer.Option(
            metavar="prompts=64,samples=8,prompt=1024,response=8192",
            help="Time rollouts of an engine. With stage rl: lengths of a step's answers, prompt=,response=,longest=. "
            "Token counts are means, longest= is the limit.",
            rich_help_panel=_SERVING,
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(help="Weight format: bf16, fp8, int8, int4, q4_0 ... Default: all.", rich_help_panel=_SERVING),
    ] = None
    cache: Annotated[str, typer.Option(help="KV cache format: bf16 or fp8.", rich_help_panel=_SERVING)] = "bf16"
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Longest sequence. Default: the model's.", rich_help_panel=_SERVING),
    ] = None
    length: Annotated[int, typer.Option(min=1, help="Mean tokens per sequence.", rich_help_panel=_SERVING)] = 8192
    latency: Annotated[
        float, typer.Option(min=0.001, help="Most milliseconds per token.", rich_help_panel=_SERVING)
    ] = 50.0
    acceptance: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Draft with MTP, with this acceptance rate.", rich_help_panel=_SERVING),
    ] = None
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write the results of --gpu or --search, and more, as an interactive page (.html).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Also plan this run on the same machine and compare: a YAML file, or 'other.yaml parallel.tp=2'.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=_OUTPUT)] = (
        False
    )
