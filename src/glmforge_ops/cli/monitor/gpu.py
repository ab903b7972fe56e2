"""`glmforge monitor gpu`."""

import threading
from typing import Annotated

import typer


def gpu(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all, readable by whoever reaches it.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any free one.")] = 9400,
) -> None:
    """Export this machine's NVIDIA GPUs to Prometheus, until interrupted; where dcgm-exporter runs, use that.

    Example:

        glmforge monitor gpu --host 0.0.0.0
    """
    from glmforge.cli.interruptible import terminable
    from glmforge.errors import HostError
    from glmforge.extras import needed_for
    from glmforge_ops.monitor.gpu import GpuExporter

    with needed_for("monitor gpu"):
        import prometheus_client  # noqa: F401
    from glmforge.observe.scrapes import ScrapeServer

    exporter = GpuExporter()
    try:
        server = ScrapeServer(exporter, host, port)
    except OSError as error:
        raise HostError(f"cannot listen on {host}:{port}: {error.strerror or error}; pass another --port") from None
    typer.echo(f"{exporter.num_gpus} GPUs on http://{host}:{server.port}/metrics")
    try:
        with terminable():
            threading.Event().wait()
    finally:
        server.close()
        exporter.close()
