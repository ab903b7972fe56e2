"""`glmforge cluster check`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from glmforge.cli.tables import print_table, table
from glmforge_ops.cli.cluster.machines import (
    ConfigArgument,
    HostfileOption,
    HostsOption,
    PartitionOption,
    SshOption,
    read_cluster,
)

if TYPE_CHECKING:
    from glmforge_ops.health.checks.examine import Findings

_COLOURS = {"pass": "green", "warning": "yellow", "fail": "red", "skipped": "dim"}
_MARGIN = 36


class LevelName(StrEnum):
    """As `glmforge_ops.health.checks.check.Level`."""

    quick = "quick"
    standard = "standard"
    thorough = "thorough"


def check(
    config: ConfigArgument = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    partition: PartitionOption = None,
    ssh: SshOption = None,
    local: Annotated[bool, typer.Option("--local", help="This machine only, without ssh.")] = False,
    level: Annotated[
        LevelName, typer.Option(help="quick: before every job; standard: manually; thorough: after a repair.")
    ] = LevelName.standard,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this check or subject, of any level; may be repeated.")
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Not this check or subject; may be repeated.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and skipped checks fail, too.")] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="With --local: Slurm drains this node if it fails, and takes it back later.")
    ] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="List checks and their limits, and end.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all findings there; - for standard output, without a table.")
    ] = None,
) -> None:
    """Is every node fit for a job? Asks all of them at once, judges, and says how to fix what is wrong.

    Exit status 0: nothing failed. 1: something did, or --strict and something was skipped.

    Examples:

        glmforge cluster check cluster.yaml --level thorough

        glmforge cluster check cluster.yaml --local --level quick --drain
    """
    from glmforge.cli.interruptible import terminable
    from glmforge.data.files import refuse_unwritable, write_whole
    from glmforge.observe.work_progress import work_progress
    from glmforge.runtime.hostfile import HostLine
    from glmforge_ops.health.checks.check import Context, Level
    from glmforge_ops.health.checks.drain import apply_to_node, reason_of
    from glmforge_ops.health.checks.examine import as_json, choose_checks, examine, exit_status
    from glmforge_ops.health.checks.thresholds import Thresholds
    from glmforge_ops.hosts.machines import fanout_of, machines_of

    if list_checks:
        _list()
        return
    if drain and not local:
        raise typer.BadParameter("--drain is for the node itself: add --local")
    if json_file is not None and json_file != Path("-"):
        refuse_unwritable(json_file, overwrite=True)
    cluster = read_cluster(config, hosts, hostfile, partition, ssh)
    machines = [HostLine("localhost")] if local else machines_of(cluster)
    chosen = choose_checks(Level[level.name.upper()], only or (), skip or ())
    context = Context(cluster, Thresholds(cluster.thresholds), {machine.name: machine for machine in machines})
    with terminable(), work_progress("checking", 16) as show:
        findings = examine(list(context.machines), chosen, context, fanout_of(cluster), progress=show)
    if drain:  # one line for Slurm's log instead of the table
        reason = reason_of(findings)
        if reason is not None:
            typer.echo(reason)
        typer.echo(apply_to_node(reason), err=True)
    elif json_file == Path("-"):
        typer.echo(json.dumps(as_json(findings), indent=1))
    else:
        _print(findings)
        if json_file is not None:
            write_whole(json_file, (json.dumps(as_json(findings), indent=1) + "\n").encode())
    raise typer.Exit(exit_status(findings, strict))


def _print(findings: "Findings") -> None:
    from glmforge.observe.units import counted
    from glmforge_ops.health.checks.check import Status
    from glmforge_ops.health.checks.examine import counts_in_words, grouped
    from glmforge_ops.hosts.fold import fold_hosts

    console = Console(soft_wrap=True, highlight=False)
    skipped: dict[str, list[str]] = {}
    for name, of_hosts in findings.outcomes.items():
        groups = grouped(of_hosts)
        for group in groups:
            if group.status is Status.PASS and len(groups) > 1:
                continue  # the summary counts them
            where = "" if len(group.hosts) == len(findings.hosts) else f"{fold_hosts(group.hosts)}: "
            if group.status is Status.SKIPPED and not group.fix:
                skipped.setdefault(where + group.value, []).append(name)
                continue
            limit = f" ({group.threshold})" if group.threshold else ""
            status = f"[{_COLOURS[group.status.value]}]{group.status.value:8}[/]"
            console.print(f"{status} {name:26} {escape(where + group.value + limit)}")
            if group.fix:
                console.print(f"{'':{_MARGIN}}-> {escape(group.fix)}")
    for reason, names in skipped.items():
        console.print(f"[{_COLOURS['skipped']}]skipped [/] {escape(reason)}: {', '.join(names)}")
    console.print(f"{counts_in_words(findings.count)} on {counted(len(findings.hosts), 'node')}")


def _list() -> None:
    from glmforge_ops.health.checks.examine import CHECKS, REACH
    from glmforge_ops.health.checks.thresholds import threshold_table

    console = Console(highlight=False)
    words = ("check", "level", "finds out")
    checks = table(*words, in_words=words)
    checks.add_row(REACH, "quick", "whether the machine answers at all; always checked")
    for each in CHECKS:
        checks.add_row(each.name, each.level.name.lower(), escape(each.about))
    print_table("", checks, console)
    columns = ("limit", "of", "value", "what, and where from")
    limits = table(*columns, in_words=columns)
    for name, rows in threshold_table().items():
        for row in rows:
            limits.add_row(name, row.of, f"{row.value:g} {row.unit}", escape(f"{row.about}. {row.source}"))
    print_table("", limits, console)
