"""`glmforge profile train | memory | data`: where a run's time and memory go. Registered in `glmforge.cli.profile`."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from glmforge.cli.tables import print_facts, print_table, table

if TYPE_CHECKING:
    from glmforge.config import RunConfig
    from glmforge.doctor.profile.loader import DataProfile
    from glmforge.doctor.profile.memory import MemoryProfile
    from glmforge.doctor.profile.train import TrainProfile

_CONFIG = typer.Argument(help="A run's YAML file, or the name of a packaged run.")
_OVERRIDES = typer.Argument(help="Configuration overrides: key.sub=value ...")
_OUTPUT = typer.Option(help="Write the figures as JSON.")
_MOST_WORKERS = 256

Config = Annotated[str, _CONFIG]
Overrides = Annotated[list[str] | None, _OVERRIDES]
Output = Annotated[Path | None, _OUTPUT]


def train(
    config: Config,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Steps without the profiler, and as many with it.")] = 5,
    output: Output = None,
    trace: Annotated[Path | None, typer.Option(help="Folder for each rank's trace (chrome://tracing).")] = None,
) -> None:
    """Run a few steps of CONFIG and show where their time goes, phase by phase, and what to change first.

    The steps are the run's own trainer's on its own data, from a new run's weights. No checkpoint is written, and the
    run's directory is not touched. What this machine can do is measured first, in a few seconds.

    Examples:

        glmforge profile train configs/demo.yaml

        torchrun --nproc-per-node 2 -m glmforge profile train configs/demo.yaml parallel.ep=2 --output train.json
    """
    with _loaded(config, overrides) as (loaded, console):
        from glmforge.doctor.profile.advice import advise
        from glmforge.doctor.profile.train import profile_training

        found = profile_training(loaded, steps, trace, _say(console))
        if console.quiet:
            return
        advice = advise(found)
        _write(output, {**found.as_json(), "advice": [vars(one) for one in advice]})
        _print_phases(found)
        for number, one in enumerate(advice, start=1):
            typer.echo(f"{number}. {one.rule}{'' if one.measured else ' (estimated)'}: {one.text}")
        if not advice:
            typer.echo("Nothing stands out: no loss above 5 % of the step.")


def memory(
    config: Config,
    overrides: Overrides = None,
    output: Output = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Folder for CUDA's allocation history (pytorch.org/memory_viz).")
    ] = None,
) -> None:
    """Take one real step of CONFIG on random tokens, and show its peak memory by category beside the plan's.

    Examples:

        glmforge profile memory configs/demo.yaml

        torchrun --nproc-per-node 2 -m glmforge profile memory configs/demo.yaml parallel.micro_batch_size=2
    """
    with _loaded(config, overrides) as (loaded, console):
        from glmforge.doctor.profile.memory import profile_memory

        _say(console)("one step, watched storage by storage")
        found = profile_memory(loaded, snapshot)
        if console.quiet:
            return
        _write(output, found.as_json())
        _print_memory(found)


def data(
    config: Config,
    overrides: Overrides = None,
    workers: Annotated[str, typer.Option(help="Numbers of reading processes to try.")] = "0,1,2",
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="For each of them.")] = 3.0,
    data_ranks: Annotated[int, typer.Option(min=1, help="Data ranks of the run; the share of one is read.")] = 1,
    training: Annotated[Path | None, typer.Option(help="What 'profile train --output' wrote: the need.")] = None,
    step_seconds: Annotated[float | None, typer.Option(min=1e-6, help="Of a training step, instead.")] = None,
    output: Output = None,
) -> None:
    """Read batches of CONFIG with nothing else to do: how fast the loader is, and whether training would wait for it.

    Examples:

        glmforge profile data configs/demo.yaml

        glmforge profile data configs/demo.yaml --workers 0,2,4 --training train.json
    """
    numbers = _numbers(workers)
    with _loaded(config, overrides) as (loaded, console):
        from glmforge.doctor.profile.loader import profile_data
        from glmforge.doctor.profile.train import step_seconds_of

        need = step_seconds if training is None else step_seconds_of(training)
        found = profile_data(loaded, numbers, seconds, data_ranks=data_ranks, step_s=need, say=_say(console))
        _write(output, found.as_json())
        _print_data(found)


@contextmanager
def _loaded(config: str, overrides: list[str] | None) -> Iterator[tuple["RunConfig", Console]]:
    """The configuration, and where progress is shown: quiet on all ranks but the first."""
    from glmforge.config import load_config
    from glmforge.runtime.interrupts import end_with_torchrun, ends_at_once
    from glmforge.runtime.launch import LaunchEnvironment

    end_with_torchrun()
    is_main = LaunchEnvironment.read().is_main
    with ends_at_once("interrupted; nothing was written", speaks=is_main):
        console = Console(stderr=True, quiet=not is_main, soft_wrap=True, highlight=False, markup=False)
        yield load_config(config, list(overrides or [])), console


def _say(console: Console) -> Callable[[str], None]:
    return lambda words: console.print(words, style="dim")


def _write(output: Path | None, found: dict[str, Any]) -> None:
    if output is not None:
        from glmforge.observe.run import write_text

        write_text(output, json.dumps(found, indent=1) + "\n")


def _print_phases(found: "TrainProfile") -> None:
    from glmforge.doctor.profile.ranges import PHASES
    from glmforge.observe.units import format_bytes, format_seconds

    step = found.mean(lambda parts: parts.total)
    rows = table("phase", "forward", "backward", "together", "of the step", "of the peaks")
    for name in PHASES:
        forward, backward = (
            found.mean(lambda parts, d=direction: parts.phases.get(name, {}).get(d, 0.0))  # type: ignore[misc] # noqa: B023
            for direction in ("forward", "backward")
        )
        if both := forward + backward:
            reached = found.reached(name)
            share = "" if reached is None else f"{min(reached, 1):.0%}"
            seconds = [format_seconds(forward), format_seconds(backward) if backward else "", format_seconds(both)]
            rows.add_row(name, *seconds, f"{both / step:.1%}", share)
    for axis in sorted({axis for rank in found.ranks for axis in rank.parts.exposed}):
        exposed = found.mean(lambda parts, axis=axis: parts.exposed.get(axis, 0.0))  # type: ignore[misc]
        hidden = found.mean(lambda parts, axis=axis: parts.hidden.get(axis, 0.0))  # type: ignore[misc]
        name = f"communication, {axis} ({format_seconds(hidden)} hidden)"
        rows.add_row(name, "", "", format_seconds(exposed), f"{exposed / step:.1%}", "")
    ranks = f", mean of {len(found.ranks)} ranks" if len(found.ranks) > 1 else ""
    print_table(f"A step{ranks}", rows, Console())
    links = "".join(f", {axis} {format_bytes(rate)}/s" for axis, rate in found.peaks.links.items())
    facts = [
        ("device", found.device),
        ("step", f"{format_seconds(found.step_s)}, {found.tokens_per_step:,} tokens"),
        ("with the profiler", f"{format_seconds(found.profiled_s)} ({found.profiled_s / found.step_s - 1:+.0%})"),
        ("accounted for", f"{found.accounted:.2%} of the profiled step"),
        ("measured peaks", f"{found.peaks.flops / 1e9:,.1f} GFLOP/s, {format_bytes(found.peaks.memory)}/s{links}"),
    ]
    print_facts(facts, Console())
    typer.echo()


def _print_memory(found: "MemoryProfile") -> None:
    from glmforge.observe.units import format_bytes

    rows = table("part", "measured", "plan", "difference")
    for name in dict.fromkeys([*found.planned, *found.measured]):
        measured = format_bytes(found.measured.get(name, 0))
        if name == "logits":
            rows.add_row(name, measured, "in working memory", "")
        else:
            rows.add_row(
                name, measured, format_bytes(found.planned.get(name, 0)), _signed(found.more_than_planned(name))
            )
    peak, planned = found.peak, found.planned_peak
    rows.add_row("peak", format_bytes(peak), format_bytes(planned), _signed(peak - planned))
    rows.add_row("other: allocator, libraries", format_bytes(found.other), "", "")
    print_table(f"{found.device}, rank {found.rank}, peak in {found.moment}", rows, Console())
    typer.echo(found.difference)


def _signed(size: int) -> str:
    from glmforge.observe.units import format_bytes

    return f"{'+' if size > 0 else '-' if size < 0 else ''}{format_bytes(abs(size))}"


def _print_data(found: "DataProfile") -> None:
    from glmforge.observe.units import format_count, format_seconds

    columns = ["workers", "first batch", "samples/s", "tokens/s"]
    rows = table(*columns, *(["of the need"] if found.step_s else []))
    for speed in found.speeds:
        samples, need = found.samples_per_s(speed), found.of_need(speed)
        needs = [f"{need:.1f}x"] if need is not None else []
        cells = [format_seconds(speed.first_s), format_count(samples), format_count(samples * found.seq_len), *needs]
        rows.add_row(str(speed.workers), *cells)
    print_table(f"Batches of {found.samples_per_batch:,} rows of {found.seq_len:,} tokens", rows, Console())
    if found.sources:
        rows = table("source", "samples", "each", "of the time")
        for source in found.sources:
            rows.add_row(source.name, f"{source.samples:,}", format_seconds(source.seconds), f"{source.share:.0%}")
        print_table("Sources, in one process", rows, Console())
    typer.echo(found.verdict)


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and int(word[:9]) <= _MOST_WORKERS for word in words):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 0,1,2", param_hint="--workers")
    return sorted({int(word) for word in words})
