"""`glmforge report`: a run as one HTML page, its records under other tools' names, whether it overfits."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[Path | None, typer.Option(help="Output file; default: report.html in the run directory.")] = None,
    overfitting: Annotated[bool, typer.Option("--overfitting", help="Print training and held-out loss.")] = False,
    export_logs: Annotated[
        Path | None,
        typer.Option(help="Write train_log.jsonl, eval_log.jsonl and expert_usage.jsonl to this directory."),
    ] = None,
    evaluations: Annotated[
        Path | None,
        typer.Option(help="Results of 'glmforge evaluate --watch' to draw; evaluations in the run by default."),
    ] = None,
) -> None:
    """Write a run's report: loss, learning rate, throughput, expert balance, evaluation, configuration.

    Of a run that belongs to a job ('glmforge launch') also the job's goodput.

    With --overfitting or --export-logs only that is done, unless --out is given too.

    Example:

        glmforge report runs/demo

        glmforge report runs/demo --overfitting
    """
    if overfitting:
        _print_overfitting(run)
    if export_logs is not None:
        from glmforge.observe.run import read_run
        from glmforge.report.export_logs import export_logs as write_logs

        for path in write_logs(read_run(run), export_logs):
            typer.echo(f"{path}")
    if out is not None or not (overfitting or export_logs):
        from glmforge.report.goodput import report_extra
        from glmforge.report.report import write_report

        typer.echo(f"{write_report(run, out, report_extra(run), evaluations)}")


def _print_overfitting(run: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    from glmforge.cli.tables import print_table
    from glmforge.cli.tables import table as make_table
    from glmforge.observe.run import read_run
    from glmforge.report.overfitting import advice, find_overfitting, overfitting_table

    log, console = read_run(run), Console()
    findings = find_overfitting(log)
    if not findings:
        typer.echo(f"{run}: has no evaluations during training; set observe.evaluate_every")
        return
    given = overfitting_table(findings)
    rows = make_table(*(column.title.lower() for column in given.columns))
    for cells in given.rows:
        rows.add_row(*(escape(cell.text) for cell in cells))
    print_table(given.note, rows, console)
    for sentence in advice(log, findings):
        console.print(f"{escape(sentence)}.", highlight=False)
