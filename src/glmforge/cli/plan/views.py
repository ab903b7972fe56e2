"""Which view of a plan the options ask for."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from glmforge.cli.plan.compare import other_run, show_comparison
from glmforge.cli.plan.cost import check_cost_options, show_cost
from glmforge.cli.plan.dry_run import show_dry_run, take_dry_run
from glmforge.cli.plan.layout import checked_layout, draw_schedule, print_layout, print_phases
from glmforge.cli.plan.options import PlanOptions
from glmforge.cli.plan.rollout import show_rollout
from glmforge.cli.plan.roofline import show_roofline
from glmforge.cli.plan.search import search
from glmforge.cli.plan.serving import Service, check_serving_options, show_serving
from glmforge.cli.plan.sheet import show_sheet
from glmforge.cli.plan.stage import check_dry_run, read_stage, show_stage
from glmforge.cli.plan.summary import check_output_options, chosen_machine, plan_report, show_report

if TYPE_CHECKING:
    from glmforge.config.layout import Layout
    from glmforge.config.schema import RunConfig
    from glmforge.dryrun.run import DryRun
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.stages.stage import TrainingStage


@dataclass(frozen=True)
class Question:
    """The options, and what they name.

    Attributes:
        written: the run as its files say.
        whole: the run with all its phases, which have a number of steps.
        config: the run as of the phase that is planned.
        machine: None without --gpu.
    """

    options: PlanOptions
    written: "RunConfig"
    whole: "RunConfig"
    config: "RunConfig"
    machine: "Machine | None"
    stage: "TrainingStage"

    @property
    def world_size(self) -> int:
        return self.options.world_size or 1

    @property
    def service(self) -> Service:
        given = self.options
        return Service(given.weights, given.cache, given.acceptance, given.context, given.length, given.latency)

    def take_dry_run(self, config: "RunConfig") -> "DryRun":
        """Of the layout of `config` on the ranks that were requested."""
        given = self.options
        progress = partial(Console(stderr=True).print, highlight=False)
        return take_dry_run(
            config, world_size=self.world_size, rank=given.rank, imbalance=given.imbalance, progress=progress
        )


def read_question(given: PlanOptions) -> Question:
    """Look up what the options name. Raises `ConfigError` for what is not known or does not go together."""
    from glmforge.config import load_config
    from glmforge.plan.layout import select_phase, with_assumed_steps

    needs_machine: dict[str, object] = {"--page": given.page, "--compare": given.compare, "--rollout": given.rollout}
    needs_machine |= {"--serve": given.serve, "--search": given.search, "--cost": given.cost}
    machine = chosen_machine(given.gpu, given.network, given.nodes_of, given.calibrate, needs_machine)
    written = load_config(given.config, given.overrides or [])
    stage = read_stage(given.stage, given.lora, given.rollout, written)
    _check_together(given, stage, written)
    whole, assumed = with_assumed_steps(
        written, stage.rollout, given.world_size or 1, any_layout=given.search or given.world_size is None
    )
    for line in assumed:
        Console(stderr=True).print(line, highlight=False, soft_wrap=True)
    return Question(given, written, whole, select_phase(whole, given.phase), machine, stage)


def _check_together(given: PlanOptions, stage: "TrainingStage", config: "RunConfig") -> None:
    """No option is passed over in silence. Raises `ConfigError`."""
    if given.dry_run:
        check_dry_run(stage, config)
    shown: dict[str, object] = {"--page": given.page, "--compare": given.compare, "--search": given.search}
    shown |= {"--dry-run": given.dry_run, "--roofline": given.roofline, "--schedule": given.schedule}
    of_cost: dict[str, object] = {"--gpus": given.world_size, "--gpu": given.gpu, "--price": given.price}
    of_cost |= {"--mfu": given.mfu, "--serve": given.serve, "--rollout": given.rollout}
    of_serving: dict[str, object] = {"--weights": given.weights, "--acceptance": given.acceptance}
    of_serving |= {"--context": given.context}
    check_cost_options(cost=given.cost, sheet=given.sheet, given=shown | of_cost)
    alone = given.rollout if stage.rollout is None else None  # otherwise it tells the lengths of a step's answers
    check_serving_options(serve=given.serve, rollout=alone, stage=stage, given=shown | of_serving)
    check_output_options(given.page, given.compare, search=given.search, roofline=given.roofline)


def show_answer(asked: Question) -> None:
    """Print the one view that is requested, and draw the schedule if that is requested too."""
    given = asked.options
    if given.sheet is not None:
        show_sheet(given.sheet, asked.whole, given.network, Console(), as_json=given.as_json)
    elif asked.machine is not None:
        _show_on(asked.machine, asked)
    else:
        _show_layout(asked)


def _show_on(machine: "Machine", asked: Question) -> None:
    """What the run takes on GPUs of a kind."""
    given, model, world_size = asked.options, asked.whole.model, asked.world_size
    if given.schedule is not None:
        draw_schedule(asked.whole, given.schedule, Console(stderr=given.as_json))
    if given.cost:
        _show_cost(machine, asked)
    elif given.serve:
        show_serving(model, machine, world_size, asked.service, as_json=given.as_json)
    elif given.rollout is not None and asked.stage.rollout is None:
        show_rollout(model, machine, world_size, asked.service, given.rollout, as_json=given.as_json)
    elif given.search:
        _search(machine, asked)
    elif given.roofline is not None:
        _show_roofline(given.roofline, _layout(asked), asked)
    else:
        _show_report(machine, asked)


def _show_layout(asked: Question) -> None:
    """What the run does and how it is laid out on its ranks, for any GPU."""
    given, console = asked.options, Console()
    is_stage = given.stage is not None or given.lora is not None or len(asked.stage.roles) > 1
    if not (given.as_json or given.dry_run) and given.roofline is None:
        print_phases(asked.whole, console)
    if given.schedule is not None:
        draw_schedule(asked.whole, given.schedule, Console(stderr=given.as_json))
        if given.world_size is None and not given.dry_run and given.roofline is None:
            return
    layout = _layout(asked)
    if given.roofline is not None:
        _show_roofline(given.roofline, layout, asked)
    elif given.dry_run:
        found = asked.take_dry_run(asked.config)
        show_dry_run(found, layout, given.gpu_memory, console, as_json=given.as_json)
    else:
        if not (is_stage and given.as_json):
            print_layout(asked.config, layout, console, as_json=given.as_json)
        if is_stage:
            show_stage(asked.config, layout, asked.stage, console, as_json=given.as_json)


def _layout(asked: Question) -> "Layout":
    return checked_layout(asked.whole, asked.world_size, asked.options.phase, asked.machine, Console(stderr=True))


def _show_roofline(gpu: str, layout: "Layout", asked: Question) -> None:
    given = asked.options
    pp_rank = (given.rank or 0) // layout.stage_ranks
    show_roofline(asked.config, layout, pp_rank, gpu, asked.stage, as_json=given.as_json)


def _show_cost(machine: "Machine", asked: Question) -> None:
    """Of all phases, unless one was chosen."""
    given = asked.options
    show_cost(
        asked.whole if given.phase is None else asked.config,
        asked.world_size,
        machine,
        given.price,
        given.mfu,
        asked.stage,
        given.imbalance,
        Console(),
        as_json=given.as_json,
    )


def _search(machine: "Machine", asked: Question) -> None:
    given = asked.options
    search(
        asked.whole,
        asked.written,
        asked.world_size,
        machine,
        phase=given.phase,
        stage=asked.stage,
        source=given.config,
        overrides=given.overrides or [],
        winner=given.winner,
        page=given.page,
        price=given.price,
        as_json=given.as_json,
    )


def _show_report(machine: "Machine", asked: Question) -> None:
    """The plan on these GPUs, beside another one if that is requested."""
    given = asked.options
    other = other_run(given.compare, asked.stage, asked.world_size) if given.compare is not None else None
    _layout(asked)
    plan_run = partial(
        plan_report,
        given.phase,
        asked.world_size,
        machine,
        asked.stage,
        given.price,
        given.imbalance,
        asked.take_dry_run if given.dry_run else None,
    )
    report, console = plan_run(asked.whole), Console()
    if other is None:
        show_report(report, console, page=given.page, as_json=given.as_json)
    else:
        show_comparison(report, plan_run(other), console, page=given.page, as_json=given.as_json)
