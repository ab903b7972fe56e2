"""`glmforge plan --cost`: days, GPU-hours, energy, dollars, storage and failures of a whole run."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table
from glmforge.errors import ConfigError

if TYPE_CHECKING:
    from glmforge.config.schema import RunConfig
    from glmforge.plan.cost.run_cost import PhaseCost, RunCost
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.stages.stage import TrainingStage

_OF_COST = {"--gpus", "--gpu", "--price", "--mfu"}
_WORTH_SAYING = 0.002
"""Goodput that another interval has to gain before it is proposed."""


def check_cost_options(*, cost: bool, sheet: str | None, given: Mapping[str, object]) -> None:
    """`given` are the other options by name, None or False where they are not. Raises `ConfigError` for what does not
    go together, so that no option is passed over."""
    names = {name for name, value in given.items() if value not in (None, False)}
    if "--mfu" in names and not cost:
        raise ConfigError("--mfu: needs --cost")
    if "--price" in names and "--gpu" not in names:
        raise ConfigError("--price: needs the GPU; add --gpu, such as --gpu h100-80gb")
    if not cost and sheet is None:
        return
    own = _OF_COST if sheet is None else set()
    if others := sorted(names - own):
        why = "brings its own GPUs and prices" if others[0] in _OF_COST else "cannot be combined"
        raise ConfigError(f"{'--cost' if sheet is None else '--sheet'}: {why}; remove {others[0]}")


def show_cost(
    config: "RunConfig",
    world_size: int,
    machine: "Machine",
    price: str | None,
    mfu: float | None,
    stage: "TrainingStage",
    imbalance: float,
    console: Console,
    *,
    as_json: bool,
) -> None:
    """Of all phases on one layout, or at a utilisation that is given. Raises `ConfigError` if none can be timed."""
    from glmforge.plan.cost.phase_time import phases_at, predicted_phases
    from glmforge.plan.cost.run_cost import cost_as_json, run_cost
    from glmforge.plan.cost.settings import read_settings
    from glmforge.plan.cost.storage import room_for

    settings = read_settings(price)
    if mfu is None:
        phases = predicted_phases(config, world_size, machine, stage, imbalance)
    else:
        phases = phases_at(config, world_size, machine, mfu, stage)
    problems = [phase.problem for phase in phases if phase.problem is not None]
    if len(problems) == len(phases):
        raise ConfigError(f"{problems[0]}; or pass --mfu, which needs no layout")
    cost = run_cost(config, world_size, machine, phases, settings, stage)
    if as_json:
        room, _ = room_for(config.checkpoint.dir or config.output_dir, settings.disk_bytes)
        typer.echo(json.dumps(cost_as_json(cost) | {"room_bytes": room}, indent=2))
        return
    speed = f"by the predicted step ({cost.provenance})" if mfu is None else f"at {mfu:.1%} of the peak (given)"
    _print_times(cost, speed, console)
    _print_dollars(cost, console)
    _print_failures(cost, console)
    _print_storage(config, cost, console)
    _print_traffic(cost, console)
    _print_assumptions(cost, console)


def _print_times(cost: "RunCost", speed: str, console: Console) -> None:
    from glmforge.observe.units import format_duration

    rows = table("phase", "s/step", "MFU", "time", "goodput", "total")
    for phase in cost.phases:
        rows.add_row(*_time_cells(cost, phase))
    rows.add_section()
    undisturbed = format_duration(sum(phase.time.seconds or 0.0 for phase in cost.phases))
    shares = f"{cost.utilisation:.1%}", undisturbed, f"{cost.goodput:.1%}", format_duration(cost.seconds)
    rows.add_row("all", "", *shares)
    device = f"{cost.world_size:,} {cost.machine.accelerator.name}, {cost.machine.network.name}"
    print_table(f"On {device}, {speed}; total including failures", rows, console)
    for phase in cost.phases:
        if phase.time.problem:
            console.print(f"- phase {phase.time.name} is not included: {phase.time.problem}", highlight=False)


def _time_cells(cost: "RunCost", phase: "PhaseCost") -> list[str]:
    from glmforge.observe.units import format_duration

    time = phase.time
    if time.seconds is None or phase.seconds is None:
        return [time.name, *["-"] * 5]
    peak = cost.world_size * cost.machine.accelerator.bf16_flops
    return [
        time.name,
        f"{time.seconds / time.steps:,.2f}",
        f"{time.model_flops / time.seconds / peak:.1%}",
        format_duration(time.seconds),
        f"{phase.goodput:.1%}",
        format_duration(phase.seconds),
    ]


def _print_dollars(cost: "RunCost", console: Console) -> None:
    rows, price = table("", "GPU-hours", "MWh", "dollars"), cost.price
    for phase in cost.phases:
        if phase.seconds is not None:
            words = f"phase {phase.time.name}"
            rows.add_row(words, *_numbers(phase.gpu_hours, phase.kilowatt_hours, phase.gpu_dollars))
    for words, dollars in cost.dollars.items():
        if words != "GPUs":
            rows.add_row(words, "", "", f"{dollars:,.0f}")
    rows.add_section()
    rows.add_row("all", *_numbers(cost.gpu_hours, cost.kilowatt_hours, sum(cost.dollars.values()) or None))
    title = f"No price of an {cost.machine.accelerator.name} is known; pass --price DOLLARS per GPU-hour"
    if price is not None:
        title = f"At ${price.dollars_per_gpu_hour:.2f} per GPU-hour ({price.date}, {price.source})"
    print_table(title, rows, console)
    if price is not None and (between := cost.dollars_between):
        console.print(f"In four of five cases ${between[0]:,.0f} to ${between[1]:,.0f}, by the time of a step alone.")


def _numbers(gpu_hours: float, kilowatt_hours: float | None, dollars: float | None) -> list[str]:
    megawatt_hours = "" if kilowatt_hours is None else f"{kilowatt_hours / 1e3:,.1f}"
    return [f"{gpu_hours:,.0f}", megawatt_hours, "" if dollars is None else f"{dollars:,.0f}"]


def _print_failures(cost: "RunCost", console: Console) -> None:
    failures = cost.failures
    console.print(
        f"A failure about every {failures.mtbf_seconds / 3600:,.1f} hours costs {failures.restart_seconds:,.0f} s of "
        f"restart and the work since the last checkpoint; they are {cost.interval_steps:,} steps apart.",
        highlight=False,
    )
    for phase in cost.phases:
        if phase.time.seconds is not None and phase.best_goodput - phase.goodput > _WORTH_SAYING:
            console.print(
                f"- phase {phase.time.name}: every {phase.best_interval:,} steps would raise goodput from "
                f"{phase.goodput:.1%} to {phase.best_goodput:.1%}",
                highlight=False,
            )


def _print_storage(config: "RunConfig", cost: "RunCost", console: Console) -> None:
    from glmforge.plan.cost.storage import room_for

    storage = cost.storage
    one = storage.checkpoint
    where = "on nodes' disks" if storage.is_local else "on shared storage"
    rows = table("", "size", "number", "total")
    rows.add_row("a checkpoint's weights, fp32", _size(storage.weights), "", "")
    rows.add_row("its optimizer states", _size(storage.optimizer), "", "")
    rows.add_row("permanent, kept", _size(one), f"{storage.lasting_kept:,}", _size(storage.lasting_kept * one))
    rows.add_row(f"newest kept {where}", _size(one), f"{storage.ephemeral_kept:,}", _size(storage.ephemeral_kept * one))
    rows.add_row("at most on shared storage", "", "", _size(storage.shared_peak))
    rows.add_row("written to it in the whole run", "", "", _size(storage.written_to_shared))
    rows.add_row("token shards, one epoch", "", "", _size(storage.token_shards))
    print_table("Storage", rows, console)
    if storage.is_local:
        nodes = -(-cost.world_size // cost.machine.ranks_per_node)
        console.print(f"Each of {nodes:,} nodes needs {_size(storage.local_peak / nodes)} of local disk.")
    free, place = room_for(config.checkpoint.dir or config.output_dir, cost.settings.disk_bytes)
    verdict = "enough" if free >= storage.shared_peak else "NOT enough; see checkpoint.keep_last, keep_every_steps"
    needed = f"Checkpoints need {_size(storage.shared_peak)}"
    console.print(f"{needed}; {_size(free)} {place}: {verdict}.", highlight=False, soft_wrap=True)


def _print_traffic(cost: "RunCost", console: Console) -> None:
    rows = table("axis", "inside nodes", "between nodes")
    for axis, sent in cost.sent.items():
        rows.add_row(axis, _size(sent.inside) if sent.inside else "", _size(sent.outside) if sent.outside else "")
    if cost.sent:
        print_table("Sent by all GPUs in the whole run", rows, console)


def _print_assumptions(cost: "RunCost", console: Console) -> None:
    settings = cost.settings
    assumed = {
        name: value
        for name, value in settings.model_dump().items()
        if name not in settings.model_fields_set and value not in (None, 0.0, {})
    }
    words = ", ".join(f"{name} {value:g}" for name, value in assumed.items())
    console.print(f"Assumed (change with --price name=value,... or a YAML file): {words}.", highlight=False)


def _size(num_bytes: float) -> str:
    for factor, unit in ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.2f} {unit}"
    return f"{num_bytes / 1e6:,.2f} MB"
