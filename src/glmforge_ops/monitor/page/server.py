"""The server of the page, on the loopback: static files, and the answers of Prometheus to the panels' own queries.

A reader chooses a panel, a run and a time; no PromQL comes from the browser. Requests under another host name than the
loopback's are refused, so that a foreign page cannot have its name lead here (DNS rebinding).
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from glmforge.errors import GlmforgeError, HostError
from glmforge_ops.monitor.ask import Prometheus
from glmforge_ops.monitor.dashboards.panels import DASHBOARDS, Panel

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HERE = Path(__file__).parent
_FILES = {"/": "index.html", "/page.js": "page.js", "/chart.js": "chart.js", "/page.css": "page.css"}
_POINTS, _MOST_SERIES = 240, 20
_MINUTES = (15, 60, 180, 720, 2880, 10080)


def make_app(prometheus: Prometheus, clock: Callable[[], float] = time.time) -> Starlette:
    """The application; handlers that ask Prometheus run in threads."""

    def overview(_: Request) -> Response:
        return _told(lambda: _overview(prometheus))

    def panel(request: Request) -> Response:
        return _told(lambda: _panel(prometheus, dict(request.query_params), clock()))

    routes = [_static(path, name) for path, name in _FILES.items()]
    routes += [Route("/api/overview", overview), Route("/api/panel", panel)]
    hosts = TrustedHostMiddleware
    return Starlette(routes=routes, middleware=[Middleware(hosts, allowed_hosts=["127.0.0.1", "localhost"])])


def serve(prometheus: Prometheus, port: int, say: Callable[[str], None]) -> None:
    """Until interrupted. Raises `HostError` if the port is in use."""
    import socket

    import uvicorn

    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        raise HostError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}; pass another --port") from None
    say(f"http://127.0.0.1:{listening.getsockname()[1]}")
    config = uvicorn.Config(make_app(prometheus), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def expression(template: str, run: str, step: float) -> str:
    """A panel's query for one run, or for all if `run` is empty, at points `step` seconds apart."""
    # Quoted for the regular expression (RE2 refuses a backslash before a letter), then for the string around it.
    chosen = re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", run) if run else ".*"
    quoted = chosen.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return template.replace("$run", quoted).replace("$__rate_interval", f"{max(60, int(4 * step))}s")


def _overview(prometheus: Prometheus) -> dict[str, Any]:
    """Dashboards, runs known in the last day, targets and alerts."""
    now = time.time()
    runs = prometheus.get(f"/api/v1/label/run/values?start={now - 86_400:.0f}")
    targets = [one["health"] for one in prometheus.get("/api/v1/targets?state=active")["activeTargets"]]
    alerts = [one["labels"] for one in prometheus.get("/api/v1/alerts")["alerts"] if one["state"] == "firing"]
    return {
        "dashboards": [{"title": one.title, "panels": list(map(_shown, one.panels))} for one in DASHBOARDS],
        "minutes": _MINUTES,
        "runs": sorted(runs)[:500],
        "up": targets.count("up"),
        "down": targets.count("down"),
        "alerts": alerts[:100],
    }


def _shown(panel: Panel) -> dict[str, str]:
    return {"title": panel.title, "unit": panel.unit, "needs": panel.needs}


def _panel(prometheus: Prometheus, wanted: dict[str, str], now: float) -> dict[str, Any]:
    try:
        dashboard, number, minutes = (int(wanted[name]) for name in ("dashboard", "panel", "minutes"))
        if min(dashboard, number) < 0 or minutes not in _MINUTES or len(wanted.get("run", "")) > 200:
            raise ValueError
        panel = DASHBOARDS[dashboard].panels[number]
    except (KeyError, ValueError, IndexError):
        raise HostError("no such panel") from None
    step = minutes * 60 / _POINTS
    end = now // step * step  # points stay where they are when the page asks again
    found = []
    for query in panel.queries:
        text = expression(query.expr, wanted.get("run", ""), step)
        for series in prometheus.query_range(text, end - minutes * 60, end, step):
            found.append({"name": legend(query.legend, series["metric"]), "points": _numbers(series["values"])})
    return {
        "start": end - minutes * 60,
        "end": end,
        "series": found[:_MOST_SERIES],
        "left_out": len(found[_MOST_SERIES:]),
    }


def legend(template: str, labels: dict[str, str]) -> str:
    """What a series is called; `__name__` without what all our names begin with."""
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template)
    return " ".join(text.replace("glmforge_", "").split()) or "value"


def _numbers(values: list[list[Any]]) -> list[list[float | None]]:
    """JSON has no NaN and no infinity: those points are gaps."""
    numbers = ((at, float(text)) for at, text in values)
    return [[at, value if abs(value) < float("inf") else None] for at, value in numbers]


def _told(answer: Callable[[], dict[str, Any]]) -> Response:
    try:
        return JSONResponse(answer(), headers=_HEADERS)
    except GlmforgeError as error:
        status = 400 if str(error) == "no such panel" else 502
        return JSONResponse({"error": str(error)}, status_code=status, headers=_HEADERS)


def _static(path: str, name: str) -> Route:
    async def send(_: Request) -> Response:
        return FileResponse(_HERE / name, headers=_HEADERS)

    return Route(path, send)
