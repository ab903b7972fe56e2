"""`glmforge cluster bench`: how fast ranks communicate, and which host or path is slower than the others."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmforge.cli.signature import takes
from glmforge.errors import ConfigError
from glmforge_ops.health.collectives.kinds import DTYPES, KINDS, find_kinds
from glmforge_ops.health.collectives.rows import HEADER, Row, as_json, line_of
from glmforge_ops.health.collectives.settings import MAX_LOCAL, BenchSettings, SlowSettings, message_sizes, parse_size
from glmforge_ops.health.collectives.verdict import Expected, expect, judge, wrong_elements

if TYPE_CHECKING:
    from glmforge_ops.health.collectives.slow.drive import Outcome, RoundDone


class Backend(StrEnum):
    """What carries the messages."""

    auto = "auto"
    nccl = "nccl"
    gloo = "gloo"


class NcclTests(StrEnum):
    """Whether nccl-tests measures."""

    auto = "auto"
    never = "never"
    require = "require"


class Unit(StrEnum):
    """What is compared."""

    host = "host"
    rank = "rank"


Dtype = StrEnum("Dtype", {name: name for name in DTYPES})  # type: ignore[misc]  # made of the table

_BENCH, _SLOW = "Measure collectives", "Find what is slow"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What is measured, and how the ranks come to be."""

    local: Annotated[
        int | None,
        typer.Option(help="Start this many ranks on this machine.", show_default="those of torchrun or srun"),
    ] = None
    backend: Annotated[Backend, typer.Option(help="'auto' is NCCL where there is a GPU.")] = Backend.auto
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds for a measurement, and to meet.", show_default="60; 30 with --find-slow"),
    ] = None
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result here.")] = None
    collective: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable: " + ", ".join(KINDS) + ".", show_default="all", rich_help_panel=_BENCH),
    ] = None
    min_bytes: Annotated[str, typer.Option(help="Smallest message: 8, 64K, 1M, 2G.", rich_help_panel=_BENCH)] = "1M"
    max_bytes: Annotated[str, typer.Option(help="Largest message.", rich_help_panel=_BENCH)] = "64M"
    factor: Annotated[float, typer.Option(help="From one size to the next.", rich_help_panel=_BENCH)] = 2
    iterations: Annotated[int, typer.Option(min=1, help="Timed in one go.", rich_help_panel=_BENCH)] = 20
    warmup: Annotated[int, typer.Option(min=0, help="Before the timed ones.", rich_help_panel=_BENCH)] = 5
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare every element of the result.", rich_help_panel=_BENCH)
    ] = True
    dtype: Annotated[Dtype, typer.Option(help="Of the elements.", rich_help_panel=_BENCH)] = Dtype.float32  # type: ignore[attr-defined]
    nccl_tests: Annotated[
        NcclTests,
        typer.Option(help="Let nccl-tests measure this machine's GPUs, if it is on PATH.", rich_help_panel=_BENCH),
    ] = NcclTests.auto
    expect: Annotated[
        float | None,
        typer.Option(help="Bus bandwidth in GB/s: less than 0.8 of it fails. With --find-slow: of a pair of hosts."),
    ] = None
    find_slow: Annotated[
        bool, typer.Option("--find-slow", help="Compare hosts instead of measuring collectives.", rich_help_panel=_SLOW)
    ] = False
    unit: Annotated[Unit, typer.Option(help="Compare hosts, or each rank by itself.", rich_help_panel=_SLOW)] = (
        Unit.host
    )
    slow_below: Annotated[
        float, typer.Option(help="Share of the others' bandwidth below which it is slow.", rich_help_panel=_SLOW)
    ] = 0.7
    exchange_bytes: Annotated[
        str, typer.Option(help="That two ranks send each other at a time.", rich_help_panel=_SLOW)
    ] = "8M"
    partners: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most partners of a host in a round. With 1, slow hosts are found in the shortest time, but most "
            "paths are not measured.",
            show_default="all",
            rich_help_panel=_SLOW,
        ),
    ] = None


@takes(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Measure how fast ranks communicate, or find the host or the path that is slower than the others.

    All-reduce, all-gather, reduce-scatter, all-to-all (even and uneven), broadcast and point-to-point, in the columns
    of nccl-tests, every element of the result checked. The ranks are those of torchrun or srun; with --local they are
    started here. Exit status 1 if an element is wrong, less is reached than expected, or something slow is found.

    Examples:

        glmforge cluster bench --local 4 --backend gloo --max-bytes 4M

        torchrun --nproc-per-node 8 -m glmforge cluster bench --collective all_reduce --min-bytes 1G --max-bytes 8G

        srun --nodes 128 --ntasks-per-node 8 glmforge cluster bench --find-slow --json slow.json
    """
    from glmforge_ops.health.collectives.local import run_local
    from glmforge_ops.health.collectives.run import choose_backend

    if options.json_file == Path("-"):
        raise ConfigError("--json -: the table is on standard output; name a file")
    if options.local is not None and not 2 <= options.local <= MAX_LOCAL:
        raise ConfigError(f"--local {options.local}: give from 2 to {MAX_LOCAL} ranks")
    backend = choose_backend(options.backend.value)
    expected = None if options.expect is None else expect(options.expect)
    if options.find_slow:
        arguments: tuple[Any, ...] = (_slow_settings(options, backend), options.json_file)
        function: Any = _find_slow
    else:
        settings = _bench_settings(options, backend)
        status = _with_nccl_tests(settings, options, expected)
        if status is not None:
            raise typer.Exit(status)
        arguments = (settings, expected, options.json_file)
        function = _bench
    status = function(*arguments) if options.local is None else run_local(options.local, function, *arguments)
    raise typer.Exit(status)


def _bench_settings(options: BenchOptions, backend: str) -> BenchSettings:
    smallest = parse_size(options.min_bytes, "--min-bytes")
    largest = parse_size(options.max_bytes, "--max-bytes")
    return BenchSettings(
        kinds=tuple(find_kinds(options.collective or [])),
        sizes=tuple(message_sizes(smallest, largest, options.factor)),
        dtype=options.dtype.value,
        backend=backend,
        iterations=options.iterations,
        warmup=options.warmup,
        check=options.check,
        timeout_s=_timeout(options, 60.0),
    )


def _slow_settings(options: BenchOptions, backend: str) -> SlowSettings:
    if not 0 < options.slow_below < 1:
        raise ConfigError(f"--slow-below {options.slow_below:g}: give a share between 0 and 1, such as 0.7")
    return SlowSettings(
        backend=backend,
        unit=options.unit.value,
        slow_below=options.slow_below,
        expected_gbs=None if options.expect is None else expect(options.expect).busbw,
        exchange_bytes=parse_size(options.exchange_bytes, "--exchange-bytes"),
        max_partners=options.partners,
        timeout_s=_timeout(options, 30.0),
    )


def _timeout(options: BenchOptions, default: float) -> float:
    given = default if options.timeout is None else options.timeout
    if not 1 <= given <= 86_400:
        raise ConfigError(f"--timeout {given:g}: give from 1 to 86400 seconds")
    return given


def _with_nccl_tests(settings: BenchSettings, options: BenchOptions, expected: Expected | None) -> int | None:
    """The exit status if nccl-tests has measured, else None."""
    from glmforge_ops.health.collectives.run import run_with_nccl_tests

    show = _Table()
    measured = run_with_nccl_tests(settings, options.nccl_tests.value, options.local, show)
    return None if measured is None else _conclude(*measured, settings, expected, options.json_file, "nccl-tests")


def _bench(settings: BenchSettings, expected: Expected | None, json_file: Path | None) -> int:
    """On each rank: rank 0 prints. Returns the exit status."""
    from glmforge.runtime.launch import LaunchEnvironment
    from glmforge_ops.health.collectives.run import run_bench

    rows, num_ranks = run_bench(settings, _Table())
    if not LaunchEnvironment.read().is_main:
        return 0
    return _conclude(rows, num_ranks, settings, expected, json_file, "torch.distributed")


class _Table:
    """Prints rows, below a header."""

    def __init__(self) -> None:
        self._has_header = False

    def __call__(self, row: Row) -> None:
        if not self._has_header:
            self._has_header = True
            for line in HEADER:
                typer.echo(line)
        typer.echo(line_of(row))
        sys.stdout.flush()


def _conclude(
    rows: list[Row],
    num_ranks: int,
    settings: BenchSettings,
    expected: Expected | None,
    json_file: Path | None,
    measured_by: str,
) -> int:
    verdicts = [] if expected is None else judge(rows, expected)
    for verdict in verdicts:
        typer.echo(f"{verdict.status}: {verdict.message}")
    wrong = wrong_elements(rows)
    if wrong:
        typer.echo(f"fail: {wrong:,} elements are wrong")
    if json_file is not None:
        content = {
            "measured_by": measured_by,
            "backend": settings.backend,
            "num_ranks": num_ranks,
            "iterations": settings.iterations,
            "rows": as_json(rows),
            "verdicts": [verdict._asdict() for verdict in verdicts],
        }
        json_file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return int(wrong > 0 or any(verdict.status == "fail" for verdict in verdicts))


def _find_slow(settings: SlowSettings, json_file: Path | None) -> int:
    """On each rank: rank 0 prints. Returns the exit status."""
    from glmforge_ops.health.collectives.run import run_find_slow
    from glmforge_ops.health.collectives.slow.report import findings_as_json, line_of_round, lines_of

    def show(done: "RoundDone") -> None:
        typer.echo(line_of_round(done), err=True)

    outcome = run_find_slow(settings, show)
    if outcome.findings is None:
        return 0
    for line in lines_of(outcome.units, outcome.findings, settings):
        typer.echo(line)
    if json_file is not None:
        content = {"settings": asdict(settings), **findings_as_json(outcome.units, outcome.findings)}
        json_file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    status = int(not outcome.findings.is_clean)
    _end_at_once_if_broken(outcome, status)
    return status


def _end_at_once_if_broken(outcome: "Outcome", status: int) -> None:
    """The teardown of a communicator in which something failed may not come to an end."""
    if outcome.broken:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
