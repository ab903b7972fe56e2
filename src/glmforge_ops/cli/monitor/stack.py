"""`glmforge monitor up`, `down`, `status`, `dashboards` and `page`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

DirectoryOption = Annotated[Path, typer.Option(help="Where configuration, data and state are.")]


def up(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or directories that hold runs.")],
    directory: DirectoryOption = Path("monitoring"),
    host: Annotated[str, typer.Option(help="Address of Prometheus and Grafana.")] = "127.0.0.1",
    web_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prometheus' web configuration, with basic_auth_users.")
    ] = None,
    login: Annotated[Path | None, typer.Option(metavar="FILE", help="One of these users, as user:password.")] = None,
    webhook: Annotated[
        str, typer.Option(metavar="URL", help="Where Alertmanager sends every alert.")
    ] = "http://127.0.0.1:9095/alerts",
    interval: Annotated[int, typer.Option(min=1, max=600, help="Seconds between scrapes.")] = 15,
    retention: Annotated[str, typer.Option(help="How long Prometheus keeps data.")] = "30d",
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="JOB=HOST:PORT", help="Scrape this, too; JOB is node, gpu or serving. May be repeated."),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install missing system packages, unasked.")] = False,
    containers: Annotated[bool, typer.Option("--containers", help="Start containers instead of binaries.")] = False,
) -> None:
    """Start Prometheus, Alertmanager, node exporter and, where it is installed, Grafana.

    They run until 'glmforge monitor down', with our rules and dashboards, and scrape all runs in the directories.
    A usual port that is in use is replaced by any free one.

    Example:

        glmforge monitor up runs

        glmforge monitor up runs --target serving=127.0.0.1:8000 --target gpu=127.0.0.1:9400
    """
    from glmforge_ops.monitor import programs
    from glmforge_ops.monitor.stack import Options, url_of
    from glmforge_ops.monitor.stack import up as start

    absent = [one for one in programs.missing() if one.package]
    if absent and not containers:
        names = ", ".join(one.package for one in absent)
        if install or (sys.stdin.isatty() and typer.confirm(f"Install {names} by apt-get?", default=False)):
            programs.install(absent)
    also = tuple((job, address) for job, _, address in (one.partition("=") for one in target or ()))
    options = Options(
        directory, tuple(runs), host, web_config, login, webhook, interval, retention, containers, also
    )  # fmt: skip
    state = start(options, say=lambda line: typer.echo(line, err=True))
    for name, service in state.services.items():
        if service.port:
            typer.echo(f"{name}: {url_of(service)}")
    if "grafana" in state.services:
        typer.echo(f"grafana: user admin, password in {directory}/grafana/admin-password")


def down(directory: DirectoryOption = Path("monitoring")) -> None:
    """End what 'glmforge monitor up' started; data and configuration stay.

    Example:

        glmforge monitor down
    """
    from glmforge_ops.monitor.stack import down as end

    typer.echo(f"{directory}: ended {', '.join(end(directory)) or 'nothing, all had ended'}")


def status(
    directory: DirectoryOption = Path("monitoring"),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show servers, targets that are down, and alerts that fire. Exit status 1 if a server has ended.

    Example:

        glmforge monitor status
    """
    from glmforge.files import escaped
    from glmforge_ops.monitor.stack import as_json, open_state
    from glmforge_ops.monitor.stack import status as ask

    found = ask(open_state(directory))
    lines = [f"{one['service']}: {one['health']} {one['address']}".rstrip() for one in found["services"]]
    down = [one for one in found["targets"] if one["health"] == "down"]
    num_up = sum(one["health"] == "up" for one in found["targets"])
    lines.append(f"targets: {num_up} up, {len(down)} down")
    lines += [f"  down: {one['job']} {one['run']} {one['instance']}: {one['error']}" for one in down]
    lines.append(f"alerts: {len(found['alerts'])} firing")
    lines += [f"  {one.get('alertname')}: {one.get('severity')} {one.get('run', '')}" for one in found["alerts"]]
    typer.echo(as_json(found) if json else "\n".join(map(escaped, lines)))
    if any(one["health"] not in ("ready", "running") for one in found["services"]):
        raise typer.Exit(1)


def dashboards(
    output: Annotated[Path, typer.Option(help="Directory that gets a JSON file per dashboard.")],
) -> None:
    """Write the dashboards for a Grafana of your own.

    Example:

        glmforge monitor dashboards --output grafana
    """
    from glmforge_ops.monitor.dashboards.grafana import write_dashboards

    for path in write_dashboards(output):
        typer.echo(str(path))


def page(
    directory: DirectoryOption = Path("monitoring"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="On 127.0.0.1; 0: any free one.")] = 9096,
) -> None:
    """Serve the dashboards as a page on 127.0.0.1, where there is no Grafana, until interrupted.

    Example:

        glmforge monitor page
    """
    from glmforge.cli.interruptible import terminable
    from glmforge_ops.monitor.page import serve
    from glmforge_ops.monitor.stack import open_state

    with terminable():
        serve(open_state(directory).prometheus(), port, say=typer.echo)
