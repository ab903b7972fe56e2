"""`glmforge plan --search`: the layouts that fit, ranked, and the best of them as a file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from glmforge.cli.tables import gib, print_table, table
from glmforge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glmforge.config.schema import RunConfig
    from glmforge.dryrun.search import Confirmed
    from glmforge.plan.machine.machine import Machine
    from glmforge.plan.report import PlanReport
    from glmforge.plan.search.search import Candidate, Fit, SearchResult
    from glmforge.plan.stages.stage import TrainingStage

_SHOWN = 10


def search(
    config: "RunConfig",
    written: "RunConfig",
    world_size: int,
    machine: "Machine",
    *,
    phase: str | None,
    stage: "TrainingStage",
    source: str,
    overrides: "Sequence[str]",
    winner: Path | None,
    page: Path | None,
    price: str | None,
    as_json: bool,
) -> None:
    """Search, confirm by a dry run, print, and write the winner, and a page of it if `page` names one.

    `written` is the run as its files say, which the winner's file goes on from.
    """
    from glmforge.dryrun.search import confirm
    from glmforge.plan.search.fewest import fewest_devices
    from glmforge.plan.search.search import search_layouts
    from glmforge.plan.search.winner import other_phases, write_winner

    errors = Console(stderr=True)

    def progress(line: str) -> None:
        errors.print(line, highlight=False)

    result = search_layouts(config, world_size, machine, phase=phase, stage=stage, progress=progress)
    # Where these are too few, or enough only with what waits in host memory, more are looked for.
    most = world_size if result.fits_devices else 16 * world_size
    fewest = fewest_devices(config, machine, phase=phase, stage=stage, most=most)
    confirmed = confirm(result, progress=progress) if result.ranked else None
    if as_json:
        typer.echo(json.dumps(_as_json(result, confirmed, fewest), indent=2))
    else:
        _print(result, confirmed, fewest, Console())
    if confirmed is None:
        raise ConfigError(_nothing(result, fewest))
    path = winner or Path(f"{Path(source).stem}_{world_size}gpus.yaml")
    planned = phase or config.phases[0].name
    others = other_phases(confirmed.candidate, config, planned, result.memory_limit)
    for line in others:
        progress(line)
    notes = [*_notes(result, confirmed, planned), *others]
    num_nodes = -(-world_size // machine.ranks_per_node)
    write_winner(confirmed.candidate, written, source, overrides, path, notes, num_nodes=num_nodes)
    progress(f"written to {path}")
    if page is not None:
        from glmforge.report.plan_page import write_plan

        progress(f"{write_plan(_report(result, confirmed, config, price), page)}")


def _report(result: "SearchResult", confirmed: "Confirmed", run: "RunConfig", price: str | None) -> "PlanReport":
    """The plan of the layout that was taken."""
    from glmforge.dryrun.report import planned_memory
    from glmforge.plan.cost.settings import read_settings
    from glmforge.plan.report import PlannedMemory, make_report

    taken = confirmed.candidate
    chosen = run.model_copy(update={"parallel": taken.config.parallel})
    memory = planned_memory(confirmed.run) if confirmed.run else PlannedMemory(taken.memory, "closed forms")
    settings = read_settings(price)
    report = make_report(
        chosen, taken.config, taken.layout, result.machine, stage=result.stage, settings=settings, memory=memory
    )
    return replace(report, search=result)


def _nothing(result: "SearchResult", fewest: "Fit | None") -> str:
    limit = f"{result.memory_limit / 1e9:.0f} GB of each {result.machine.accelerator.name}"
    more = f"; it fits on {fewest.layout.world_size}" if fewest else ""
    if result.ranked:
        return f"--search: none of the fastest layouts fits {limit} in its dry run; use more GPUs"
    if result.num_layouts == 0:
        return (
            f"--search: no layout of {result.world_size} GPUs divides the model and the batch; choose another number "
            "of GPUs, or a batch size with more divisors"
        )
    return f"--search: no layout on {result.world_size} GPUs fits {limit}{more}"


def _notes(result: "SearchResult", confirmed: "Confirmed", phase: str) -> list[str]:
    from glmforge.plan.answers import spread_words

    time, machine = confirmed.candidate.time, result.machine
    peak = "by a dry run" if confirmed.run else "by closed forms"
    return [
        f"{result.world_size:,} x {machine.accelerator.name}, {machine.ranks_per_node} to a node, "
        f"network {machine.network.name}; phase {phase}",
        f"predicted, not measured: {time.seconds:.2f} s a step, {time.tokens_per_second:,.0f} tokens/s, "
        f"MFU {time.utilisation:.1%}",
        *([spread_words(time)] if time.factor else []),
        f"the fullest rank needs {confirmed.peak / 1e9:.1f} GB ({peak}) of {machine.accelerator.memory_bytes / 1e9:g}",
    ]


def _print(result: "SearchResult", confirmed: "Confirmed | None", fewest: "Fit | None", console: Console) -> None:
    from glmforge.plan.answers import candidate_words

    if result.ranked:
        _print_candidates(f"The fastest of {result.num_fitting:,} that fit", result.ranked[:_SHOWN], console)
        _print_candidates("Time against memory (Pareto front)", result.pareto, console)
        if factor := result.ranked[0].time.factor:
            console.print(
                f"Predicted times are within a factor of {factor:.2f} in four of five cases.", highlight=False
            )
    if fewest is not None:
        number = fewest.layout.world_size
        console.print(
            f"Fewest GPUs that fit, at any speed: {number:,} with {candidate_words(fewest)}, "
            f"{gib(fewest.memory.peak)} GiB.",
            highlight=False,
        )
    if confirmed is not None:
        how = f"dry run: {gib(confirmed.peak)} GiB" if confirmed.run else "by closed forms; not confirmed by a dry run"
        console.print(f"Taken: {candidate_words(confirmed.candidate)} ({how}).", highlight=False)


def _print_candidates(title: str, candidates: "Sequence[Candidate]", console: Console) -> None:
    from glmforge.plan.answers import candidate_words

    rows = table("s a step", "tokens/s", "MFU", "peak GiB", "layout")
    for candidate in candidates:
        time = candidate.time
        rows.add_row(
            f"{time.seconds:.2f}",
            f"{time.tokens_per_second:,.0f}",
            f"{time.utilisation:.1%}",
            gib(candidate.memory.peak),
            candidate_words(candidate),
        )
    print_table(title, rows, console)


def _as_json(result: "SearchResult", confirmed: "Confirmed | None", fewest: "Fit | None") -> dict[str, Any]:
    taken = None
    if confirmed is not None:
        taken = _candidate_as_json(confirmed.candidate) | {"dry_run_peak_bytes": confirmed.peak}
    return {
        "world_size": result.world_size,
        "gpu": result.machine.accelerator.name,
        "memory_limit_bytes": result.memory_limit,
        "layouts": result.num_layouts,
        "fitting": result.num_fitting,
        "ranked": [_candidate_as_json(candidate) for candidate in result.ranked[:_SHOWN]],
        "pareto": [_candidate_as_json(candidate) for candidate in result.pareto],
        "fewest_gpus": _fit_as_json(fewest) if fewest else None,
        "taken": taken,
    }


def _candidate_as_json(candidate: "Candidate") -> dict[str, Any]:
    from glmforge.plan.report import interval_as_json

    time = candidate.time
    return _fit_as_json(candidate) | {
        "seconds": time.seconds,
        "interval_80": interval_as_json(time),
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.utilisation,
    }


def _fit_as_json(fit: "Fit") -> dict[str, Any]:
    from glmforge.plan.search.winner import changed_settings

    settings = changed_settings(fit.config, fit.layout, fit.config.parallel)
    return {"world_size": fit.layout.world_size, "parallel": settings, "peak_bytes": fit.memory.peak}
