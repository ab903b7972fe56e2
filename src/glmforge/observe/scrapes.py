"""An HTTP server for scrapes: prometheus_client's application behind bounds, on threads of its own.

A client that connects and says nothing is dropped after 5 s, and at most 8 are answered at a time, so that whoever
reaches the port costs the process neither threads nor memory.
"""

import json
import os
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from glmforge.observe.run import write_text

_AT_ONCE = 8
_CLIENT_S = 5.0
_POLL_S = 0.05
"""How often the server looks whether it has to end."""


class Collects(Protocol):
    """What prometheus_client calls a collector."""

    def collect(self) -> Iterable[Any]:
        """Families of metrics with their samples."""


class ScrapeServer:
    """Answers every path with what `collector` has, until it is closed. Port 0 is any that is free.

    Raises `OSError` if it cannot listen there.
    """

    def __init__(self, collector: Collects, host: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        of_family = type("_ServerOfFamily", (_Server,), {"address_family": family})
        self._server = of_family(address[:2], _Handler)
        self._server.set_app(make_wsgi_app(registry))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name=f"scrapes :{self.port}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; answers under way end by themselves."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TargetFile:
    """`<directory>/rank-NNNNN.json`, which tells `glmforge monitor targets` where a process is scraped."""

    def __init__(self, directory: Path, rank: int, **facts: object) -> None:
        self.path = directory / f"rank-{rank:05d}.json"
        self._facts = {"rank": rank, **facts}
        self._text: str | None = None

    def write(self, host: str, port: int) -> None:
        """Raises `RunFileError`."""
        reached = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
        started = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"host": reached, "port": port, "pid": os.getpid(), "started": started, **self._facts}
        text = json.dumps(facts)
        write_text(self.path, text)
        self._text = text

    def remove(self) -> None:
        """Unless it is that of another process by now."""
        text, self._text = self._text, None
        with suppress(OSError):
            if text is not None and self.path.read_text() == text:
                self.path.unlink()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(*args)

    def server_bind(self) -> None:
        """As WSGIServer, which would first ask DNS for the name of this host."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no matter."""


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def address_string(self) -> str:
        return str(self.client_address[0])
