"""A server that the run starts itself, and that ends with the run, also if the run is killed."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from glmforge.files import shown
from glmforge.rl.engines.base import EngineError, EngineLostError
from glmforge.rl.engines.http import HttpEngine

_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
_POLL_S, _FREE_S, _LAST_BYTES = 0.2, 10.0, 300
_OF_A_RANK = re.compile(
    r"(GROUP_|LOCAL_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|MASTER_.*|TORCHELASTIC_.*|SLURM_(PROCID|LOCALID|STEP_.*)"
)
"""Variables that would make a server one rank of the run's job."""


class EngineProcess:
    """The server of `engine`, by a command; see `config.rl_engine`.

    Args:
        log: what it writes goes here, behind what it wrote before.
        start_s: seconds for it to answer.
    """

    def __init__(self, engine: HttpEngine, command: list[str], log: Path, start_s: float) -> None:
        self.engine, self.command, self.log, self.start_s = engine, command, log, start_s
        self.process: subprocess.Popen[bytes] | None = None
        # Linux sends the signal when the thread that started a process ends, so it is one that lives as long as this.
        self._starter = ThreadPoolExecutor(1, "engine-starter")

    def start(self, weights: Path, *, anew: bool = False) -> None:
        """Start it with `weights`, unless it runs and answers, or `anew` in any case. Returns when it answers.

        Raises `EngineError`: something else listens at its address, it ends, or does not answer in time;
        `EngineLostError`: it was killed.
        """
        if self.process is not None and self.process.poll() is None and not anew:
            with suppress(EngineLostError):
                self.engine.version()
                return
        self._kill()
        address = urlsplit(self.engine.url)
        host, port = str(address.hostname), str(address.port)
        until = time.monotonic() + _FREE_S  # for what a killed server has started
        while _listens(host, port):
            if time.monotonic() > until:
                raise EngineError(f"{self.engine.url}: another program listens there; stop it, or change the URL")
            time.sleep(_POLL_S)
        names = {"{weights}": str(weights), "{host}": host, "{port}": port}
        command = [names.get(word, word) for word in self.command]
        self.process = self._starter.submit(self._open, command).result()
        until = time.monotonic() + self.start_s
        while time.monotonic() < until:
            if (status := self.process.poll()) is not None:
                kind = EngineLostError if status < 0 else EngineError  # one that was killed may be started again
                raise kind(f"{self.engine.url}: its server ended with status {status}: {self._last_line()}")
            with suppress(EngineLostError):
                self.engine.version()
                return
            time.sleep(_POLL_S)
        raise EngineError(f"{self.engine.url}: its server does not answer after {self.start_s:g} s; see {self.log}")

    def close(self) -> None:
        self._kill()
        self._starter.shutdown()

    def _open(self, command: list[str]) -> "subprocess.Popen[bytes]":
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as output:
                return subprocess.Popen(
                    command,
                    env={name: value for name, value in os.environ.items() if not _OF_A_RANK.fullmatch(name)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    # Not SIGKILL, which would leave the processes that a server has started.
                    preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
                )
        except OSError as error:
            raise EngineError(f"rl.engine.command: {command[0]}: cannot be started: {error.strerror}") from None

    def _kill(self) -> None:
        """With all that it has started."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _last_line(self) -> str:
        lines = self.log.read_bytes()[-_LAST_BYTES:].decode("utf-8", "replace").strip().splitlines()
        return shown(lines[-1]) if lines else f"see {self.log}"


def _listens(host: str, port: str) -> bool:
    """Whether something does: it would be taken for the server."""
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
