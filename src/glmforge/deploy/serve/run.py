"""A server from its start to its end: address, banner, and the answers that run when it is told to stop."""

import asyncio
import logging
import math
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil
import uvicorn

from glmforge.config.parameters import parameter_table
from glmforge.deploy.serve.access import LOOPBACK, Access, is_loopback, read_keys
from glmforge.deploy.serve.app import make_app
from glmforge.deploy.serve.page import page_routes
from glmforge.deploy.serve.service import Limits, ServedModel, Service
from glmforge.deploy.serve.weights import WeightUpdates
from glmforge.errors import GlmforgeError
from glmforge.generate.engine import Engine
from glmforge.generate.lead import LeadingModel, RankLostError
from glmforge.generate.params import SamplingParams

logger = logging.getLogger(__name__)

_BACKLOG = 1024
DEFAULT_MAX_TOKENS = 4096


@dataclass(frozen=True)
class ServerConfig:
    """How a server is reached and ended.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        name: of the model, as requests call it.
        key_file: API keys, besides those of the environment (see `access.read_keys`).
        allow_public: listen beyond this machine without a key.
        hosts: further names that it may be asked by.
        origins: of web pages that may ask it.
        requests_per_minute: of each key.
        drain_seconds: for answers that run when it is told to stop.
        weight_updates: let those who have a key change the weights (`weights.py`).
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    key_file: Path | None = None
    allow_public: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    drain_seconds: float = 30.0
    weight_updates: bool = False
    limits: Limits = field(default_factory=Limits)

    def check(self) -> list[str]:
        """The API keys. Raises `GlmforgeError` where none are given but others could reach the server."""
        keys = read_keys(self.key_file)
        if not (keys or self.allow_public or is_loopback(self.host)):
            raise GlmforgeError(
                f"host: {self.host} can be reached from other machines; pass --api-key-file (or set "
                "GLMFORGE_API_KEYS), or --public to serve anyone"
            )
        if self.weight_updates and not keys:
            raise GlmforgeError("--allow-weight-updates: needs API keys; pass --api-key-file or set GLMFORGE_API_KEYS")
        return keys


def serve(engine: Engine, config: ServerConfig, say: Callable[[str], None] = print) -> None:
    """Serve until a signal ends it. `say` is called with the lines of the banner.

    The first SIGTERM or SIGINT refuses new requests and waits for those that run; a second one ends at once.

    A server of several ranks ends, too, where one is lost.

    Raises:
        GlmforgeError: no tokenizer, no such address, or beyond this machine without a key.
    """
    if engine.tokenizer is None:
        raise GlmforgeError(f"{config.name}: has no tokenizer; pass a run, a checkpoint or an export, or --tokenizer")
    keys = config.check()
    hosts = None if (keys or config.allow_public) and not config.hosts else (*LOOPBACK, config.host, *config.hosts)
    longest = min(engine.runner.config.max_position_embeddings, engine.memory.num_tokens)
    names = (config.name, *engine.runner.adapters)
    model = ServedModel(engine.tokenizer, names, longest, max(1, min(DEFAULT_MAX_TOKENS, longest // 2)))
    service = Service(engine, config.limits)
    updates = WeightUpdates(service.engine) if config.weight_updates else None
    app = make_app(service, model, Access(keys, hosts, config.origins, config.requests_per_minute), updates)
    with listening(config.host, config.port) as listener:
        engine.generate([[engine.tokenizer.end_of_text_id]], SamplingParams(max_new_tokens=1))  # what is made lazily
        uvicorn_config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            backlog=_BACKLOG,
        )
        server = _Server(uvicorn_config, service, config.drain_seconds)
        if isinstance(engine.runner, LeadingModel):
            engine.runner.on_lost = server.give_up
        for line in _banner(engine, config, listener.getsockname()[1], has_keys=bool(keys)):
            say(line)
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it logs what clients do wrong as warnings
        asyncio.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """Ends as `serve` says, and with exit status 0."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_seconds: float) -> None:
        super().__init__(config)
        self._service, self._drain_seconds = service, drain_seconds
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.is_draining:
            os._exit(128 + sig)  # whatever is under way
        self._service.is_draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._begin_draining, signal.Signals(sig).name)

    def _begin_draining(self, name: str) -> None:
        running = self._service.num_running
        if running:
            logger.info("%s: waiting up to %g s for %d running requests", name, self._drain_seconds, running)
        self._draining = asyncio.create_task(self._drain())

    def give_up(self, error: RankLostError) -> None:
        """End at once: nothing can be answered any more. In any thread."""
        self._service.is_draining = self.should_exit = True

    async def _drain(self) -> None:
        await self._service.drain(self._drain_seconds)
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """A socket for the server. Raises `GlmforgeError`: the address is in use, or not local."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # With its protocol: asyncio sets TCP_NODELAY on no others, and without that a reply takes 40 ms more.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise GlmforgeError(f"cannot listen on {host}:{port}: {reason}; pass another --host or --port") from None
    return listener


def _banner(engine: Engine, config: ServerConfig, port: int, *, has_keys: bool) -> list[str]:
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    url = f"http://[{host.strip('[]')}]:{port}" if ":" in host else f"http://{host}:{port}"
    size = sum(math.prod(row.shape) for row in parameter_table(engine.runner.config).values())
    used = psutil.Process().memory_info().rss / 2**30
    cache = engine.memory.num_tokens
    keys = "API key required" if has_keys else "no API key"
    return [
        f"serving {config.name} ({size / 1e6:,.1f}M parameters) at {url}; {keys}",
        *([f"adapters: {', '.join(engine.runner.adapters)}"] if engine.runner.adapters else []),
        f"memory: {used:.1f} GiB in use, cache for {cache:,} tokens; Ctrl-C stops",
        *([f"open {url}"] if page_routes() else []),
    ]
