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
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings to change: key.sub=value, any number of them.")
    ] = None
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", "--gpus", min=1, max=2**20, help="Number of processes (GPUs); 1 if not given."),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Say whether it fits such GPUs (h100-80gb, or a YAML file), how long it takes and what it costs.",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    nodes_of: Annotated[int, typer.Option(min=1, help="GPUs of a node.", rich_help_panel=_MACHINE)] = 8
    network: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Between nodes, in Gb/s: ib400 and roce200 for each GPU, tcp30 for each node.",
            rich_help_panel=_MACHINE,
        ),
    ] = "ib400"
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Predict from points that were measured: matmuls, copies, collectives (JSON, see docs/plan.md). "
            "They come before what is known of --gpu.",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Draw the whole schedule: a page (.html) or a picture (.png, .svg)."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Take one step of the real sharded model on tensors without memory.")
    ] = False
    phase: Annotated[
        str | None,
        typer.Option(help="The phase to plan, the only one the layout has to work for. Default: the first, and all."),
    ] = None
    rank: Annotated[int | None, typer.Option(help="Of this rank alone: the dry run, the roofline.")] = None
    imbalance: Annotated[
        float, typer.Option(min=1, help="Rows that an expert-parallel rank gets, as a multiple of an even share.")
    ] = 1.0
    roofline: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="Of each operation of a rank's step: FLOPs, bytes, and the least and the expected time on this GPU.",
        ),
    ] = None
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Find the layout that is fastest on these GPUs and fits them, and write it as a file.",
            rich_help_panel=_MACHINE,
        ),
    ] = False
    winner: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where --search writes the layout it found. Default: NAME_Ngpus.yaml here.",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    gpu_memory: Annotated[float, typer.Option(help="Memory of a GPU in GB, 10^9 bytes, if no --gpu says it.")] = 80.0
    cost: Annotated[
        bool,
        typer.Option(
            "--cost",
            help="Days, GPU-hours, energy, dollars, storage, traffic and failures of all phases on GPUs of a kind.",
            rich_help_panel=_COST,
        ),
    ] = False
    price: Annotated[
        str | None,
        typer.Option(
            metavar="DOLLARS",
            help="For a GPU-hour; or settings of the cost, name=value,name=value or a YAML file of them.",
            rich_help_panel=_COST,
        ),
    ] = None
    mfu: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Instead of the prediction, such as 0.3.", rich_help_panel=_COST),
    ] = None
    sheet: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A budget of users' guides (guide, guide-64), and what it implies for this run.",
            rich_help_panel=_COST,
        ),
    ] = None
    stage: Annotated[
        str | None,
        typer.Option(
            help="What a configuration cannot say yet: lora, reward, policy. Default: its own stage.",
            rich_help_panel=_STAGES,
        ),
    ] = None
    lora: Annotated[
        str | None,
        typer.Option(
            metavar="rank=16,target=q_proj+v_proj",
            help="Train adapters of this rank on these maps (also experts, shared_experts, self_attn, mlp).",
            rich_help_panel=_STAGES,
        ),
    ] = None
    policy_models: Annotated[
        str | None,
        typer.Option(
            metavar="actor+reference+critic+reward",
            help="The models of --stage policy. Default: all four, as PPO has them; GRPO without KL has an actor.",
            rich_help_panel=_STAGES,
        ),
    ] = None
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Does the model fit as a service, and how fast is it?", rich_help_panel=_SERVING),
    ] = False
    rollout: Annotated[
        str | None,
        typer.Option(
            metavar="prompts=64,samples=8,prompt=1024,response=8192",
            help="Time a policy's rollouts; with --stage policy a whole step. Tokens are means, longest= is the cut.",
            rich_help_panel=_SERVING,
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            help="Format to serve in: bf16, fp8, int8, int4, q4_0 ... Default: all.", rich_help_panel=_SERVING
        ),
    ] = None
    cache: Annotated[str, typer.Option(help="Format of caches: bf16 or fp8.", rich_help_panel=_SERVING)] = "bf16"
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Longest sequence to serve. Default: the model's.", rich_help_panel=_SERVING),
    ] = None
    length: Annotated[int, typer.Option(min=1, help="Mean tokens of a sequence.", rich_help_panel=_SERVING)] = 8192
    latency: Annotated[
        float, typer.Option(min=0.001, help="Milliseconds per token at most.", rich_help_panel=_SERVING)
    ] = 50.0
    acceptance: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Draft with MTP; this share of drafts stands.", rich_help_panel=_SERVING),
    ] = None
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write what --gpu or --search shows, and more, as a page to play with (.html).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER",
            help="Plan this run too, on the same machine, and show both: a YAML file, or 'other.yaml parallel.tp=2'.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=_OUTPUT)] = (
        False
    )
