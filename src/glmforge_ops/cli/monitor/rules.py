"""`glmforge monitor rules`: rule files for a Prometheus of your own."""

from pathlib import Path
from typing import Annotated

import typer


def rules(
    output: Annotated[Path, typer.Option(help="Directory that gets recording.yml, alerts.yml and alertmanager.yml.")],
    webhook: Annotated[
        str, typer.Option(metavar="URL", help="Where Alertmanager sends every alert.")
    ] = "http://127.0.0.1:9095/alerts",
    runbook: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where your copy of docs/runbook.md is; alerts link to its sections.")
    ] = "docs/runbook.md",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write recording rules, alerts and Alertmanager's configuration for a Prometheus of your own.

    Targets are expected in jobs named glmforge, gpu, node and serving; 'glmforge monitor targets' writes those of runs.

    Example:

        glmforge monitor rules --output /etc/prometheus/glmforge --webhook https://oncall.example.org/hook
    """
    from glmforge_ops.monitor.rule_files import RULE_FILES, write_monitoring_files

    write_monitoring_files(output, webhook, runbook, replace=force)
    names = " and ".join(RULE_FILES)
    typer.echo(f"{output}: list {names} under rule_files of prometheus.yml; start Alertmanager with alertmanager.yml")
