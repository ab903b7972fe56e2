"""The chat page: static files, with headers that let it load nothing from elsewhere and speak to this server alone."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

DIRECTORY = Path(__file__).parent.parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".txt": "text/plain",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}


def page_routes(directory: Path = DIRECTORY) -> list[Route]:
    """A route for each file of the page, and `/` for its index.html; none where there is no page."""
    if not (directory / "index.html").is_file():
        return []
    files = [file for file in sorted(directory.rglob("*")) if file.is_file() and file.suffix in _TYPES]
    routes = [_route(f"/{file.relative_to(directory).as_posix()}", file) for file in files]
    return [_route("/", directory / "index.html"), *routes]


def _route(path: str, file: Path) -> Route:
    async def send(_: Request) -> Response:
        return FileResponse(file, media_type=_TYPES[file.suffix], headers=_HEADERS)

    return Route(path, send, methods=["GET"])
