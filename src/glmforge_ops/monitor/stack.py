"""The monitoring stack of one directory: started, asked, ended.

`state.json` names each process with the moment of its start, so that a process id that was used again is never killed.
All servers listen on the loopback. Prometheus and Grafana listen elsewhere only with a login: Prometheus' own
web configuration, which is tried out before the start counts.
"""

import fcntl
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from glmforge.errors import ConfigError, HostError
from glmforge.files import read_text, shown
from glmforge.observe.run import write_text
from glmforge.runtime.process import ProcessIdentity, identify, is_alive
from glmforge_ops.monitor.ask import Prometheus, is_healthy, read_login
from glmforge_ops.monitor.programs import PROGRAMS, find, how_to_get, missing
from glmforge_ops.monitor.stack_files import TARGETS, compose, write_files, write_grafana

HEALTH = {"prometheus": "/-/ready", "alertmanager": "/-/ready", "node": "/", "grafana": "/api/health"}
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")
_STATE, _LOCK = "state.json", ".lock"
_READY_S, _END_S = 60.0, 20.0


@dataclass(frozen=True)
class Options:
    """What `monitor up` is asked for. `login` is a file of one line, user:password, with its `web_config`.

    `also`: targets that no run announces, each a job (node, gpu, serving) and host:port.
    """

    directory: Path
    runs: tuple[Path, ...]
    host: str = "127.0.0.1"
    web_config: Path | None = None
    login: Path | None = None
    webhook: str = "http://127.0.0.1:9095/alerts"
    interval_s: int = 15
    retention: str = "30d"
    containers: bool = False
    also: tuple[tuple[str, str], ...] = ()


class Service(BaseModel):
    """A started server, or the watcher of targets, which has no port. `process` is None in a container."""

    model_config = ConfigDict(extra="forbid")

    host: str = "127.0.0.1"
    port: int = 0
    process: ProcessIdentity | None = None


class State(BaseModel):
    """What runs in a directory."""

    model_config = ConfigDict(extra="forbid")

    services: dict[str, Service] = {}
    containers: bool = False
    login: str | None = None

    def prometheus(self) -> Prometheus:
        service = self.services["prometheus"]
        return Prometheus(url_of(service), read_login(Path(self.login)) if self.login else None)


def url_of(service: Service) -> str:
    """Where this machine reaches it."""
    host = "127.0.0.1" if service.host in ("0.0.0.0", "::") else service.host
    return f"http://{f'[{host}]' if ':' in host else host}:{service.port}"


def read_state(directory: Path) -> State | None:
    """None if nothing was started there. Raises `HostError` for a damaged file."""
    if not (path := directory / _STATE).exists():
        return None
    try:
        state = State.model_validate_json(read_text(path, error=HostError))
    except ValidationError:
        raise HostError(f"{shown(path)}: not the state of a monitoring stack; end its processes, delete it") from None
    if "prometheus" not in state.services:
        raise HostError(f"{shown(path)}: has no Prometheus; delete it and run 'glmforge monitor up' again")
    return state


def open_state(directory: Path) -> State:
    """Raises `HostError` if nothing was started there."""
    if (state := read_state(directory)) is None:
        raise HostError(f"{shown(directory)}: no monitoring there; start it: glmforge monitor up RUNS")
    return state


def up(options: Options, say: Callable[[str], None]) -> State:
    """Start everything that is installed, and wait until it answers; what was started is ended if a part fails.

    Raises:
        ConfigError: options that cannot be used.
        HostError: something runs there, Prometheus is missing, or a server does not start.
    """
    _check(options)
    directory = options.directory
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(directory):
        before = read_state(directory)
        if before is not None and (before.containers or any(_lives(one) for one in before.services.values())):
            raise HostError(f"{shown(directory)}: is running; end it first: glmforge monitor down")
        programs = {one.name: one for one in PROGRAMS if options.containers or find(one)}
        if "prometheus" not in programs:
            raise HostError(f"prometheus is not installed: {how_to_get(missing())}; or pass --containers")
        state = State(containers=options.containers, login=str(options.login.absolute()) if options.login else None)
        for name, program in programs.items():
            host = options.host if name in ("prometheus", "grafana") else "127.0.0.1"
            state.services[name] = Service(host=host, port=_free_port(host, program.port))
        ports = {name: one.port for name, one in state.services.items()}
        write_files(directory, ports, options.webhook, options.interval_s, options.also)
        login = read_login(options.login) if options.login else None
        if "grafana" in ports:
            write_grafana(directory, options.host, ports["grafana"], ports["prometheus"], login)
        try:
            _start(options, state, say)
        except BaseException:
            _end(directory, state)
            (directory / _STATE).unlink(missing_ok=True)
            raise
        _write(directory, state)
    return state


def down(directory: Path) -> list[str]:
    """End what runs there; returns the names of what was running. Data and configuration stay."""
    open_state(directory)
    with _alone(directory):
        state = open_state(directory)
        ended = [name for name, one in state.services.items() if state.containers or _lives(one)]
        _end(directory, state)
        (directory / _STATE).unlink()
    return ended


def status(state: State) -> dict[str, Any]:
    """Services with port and health, targets up and down by job, and the alerts that fire."""
    services = [
        {"service": name, "address": url_of(one) if one.port else "", "health": _health(state, name, one)}
        for name, one in state.services.items()
    ]
    found: dict[str, Any] = {"services": services, "targets": [], "alerts": []}
    with suppress(HostError):
        prometheus = state.prometheus()
        found["targets"] = [
            {"job": one["labels"].get("job", ""), "instance": one["labels"].get("instance", ""),
             "run": one["labels"].get("run", ""), "health": one["health"], "error": one["lastError"]}
            for one in prometheus.get("/api/v1/targets?state=active")["activeTargets"]
        ]  # fmt: skip
        found["alerts"] = [
            one["labels"] for one in prometheus.get("/api/v1/alerts")["alerts"] if one["state"] == "firing"
        ]
    return found


def commands(options: Options, state: State, *, config: str) -> dict[str, list[str]]:
    """Arguments of each server."""
    directory, services = options.directory.absolute(), state.services
    listens = {name: f"{f'[{one.host}]' if ':' in one.host else one.host}:{one.port}" for name, one in services.items()}
    found = {
        "prometheus": [
            f"--config.file={config}",
            f"--storage.tsdb.path={directory}/data",
            f"--storage.tsdb.retention.time={options.retention}",
            f"--web.listen-address={listens['prometheus']}",
            *([f"--web.config.file={options.web_config.absolute()}"] if options.web_config else []),
        ]
    }
    if "alertmanager" in listens:
        found["alertmanager"] = [
            f"--config.file={directory}/alertmanager.yml", f"--storage.path={directory}/alertmanager",
            f"--web.listen-address={listens['alertmanager']}", "--cluster.listen-address=",
        ]  # fmt: skip
    if "node" in listens:
        found["node"] = [f"--web.listen-address={listens['node']}"]
    if "grafana" in listens:
        found["grafana"] = ["server", f"--config={directory}/grafana/grafana.ini"]
        if not options.containers:
            found["grafana"].append("--homepath=/usr/share/grafana")
    return found


def _start(options: Options, state: State, say: Callable[[str], None]) -> None:
    directory = options.directory.absolute()
    arguments = commands(options, state, config=f"{directory}/prometheus.yml")
    if options.containers:
        _start_containers(directory, arguments)
        say(f"containers of {directory}/compose.yml")
    else:
        for program in PROGRAMS:
            path = find(program)
            if path is None:
                say(f"{program.name}: not installed; {how_to_get([program])}")
                continue
            state.services[program.name].process = _spawn(directory, program.name, [path, *arguments[program.name]])
            _write(directory, state)
            say(f"{program.name}: {path}")
    watcher = [sys.executable, "-m", "glmforge", "monitor", "targets", *map(str, options.runs)]
    watcher += ["--output", str(directory / TARGETS), "--watch", str(options.interval_s)]
    state.services["targets"] = Service(process=_spawn(directory, "targets", watcher))
    _write(directory, state)  # before waiting: `down` ends what a killed `up` has started
    for name, service in state.services.items():
        _wait_ready(directory, state, name, service)
    if state.login and state.prometheus().answers_strangers():
        raise HostError(f"{shown(options.web_config)}: Prometheus answers without a login; set basic_auth_users")


def _write(directory: Path, state: State) -> None:
    write_text(directory / _STATE, state.model_dump_json(indent=1) + "\n")


def _spawn(directory: Path, name: str, command: Sequence[str]) -> ProcessIdentity:
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    (directory / "log").mkdir(mode=0o700, exist_ok=True)
    with (directory / "log" / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    return identify(process.pid)


def _start_containers(directory: Path, arguments: dict[str, list[str]]) -> None:
    for name in ("data", "alertmanager", "grafana/data"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    write_text(directory / "compose.yml", compose(directory, arguments, f"{os.geteuid()}:{os.getegid()}"))
    _compose(directory, "up", "--detach")


def _compose(directory: Path, *words: str) -> None:
    file = directory / "compose.yml"
    if shutil.which("docker") is None:
        raise HostError(f"docker is not installed; {file} is written, start it where docker is")
    command = ["docker", "compose", "--file", str(file), *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"{' '.join(command)}: {done.stderr.strip().rpartition(chr(10))[2]}")


def _wait_ready(directory: Path, state: State, name: str, service: Service) -> None:
    until = time.monotonic() + _READY_S
    while _health(state, name, service) not in ("ready", "running"):
        dead = service.process is not None and not _lives(service)
        if dead or time.monotonic() > until:
            why = "ended at once" if dead else f"is not ready after {_READY_S:g} s"
            raise HostError(f"{name} {why}; see {shown(directory / 'log' / f'{name}.log')}")
        time.sleep(0.1)


def _health(state: State, name: str, service: Service) -> str:
    if service.process is not None and not _lives(service):
        return "ended"
    if name not in HEALTH:
        return "running"
    login = read_login(Path(state.login)) if state.login and name == "prometheus" else None
    return "ready" if is_healthy(url_of(service) + HEALTH[name], login) else "not ready"


def _lives(service: Service) -> bool:
    return service.process is not None and is_alive(service.process) is True


def _end(directory: Path, state: State) -> None:
    """SIGTERM to each, SIGKILL to those that do not end; a process that is not the one started is left alone."""
    processes = [one.process for one in state.services.values() if one.process is not None]
    for number, limit_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, 5.0)):
        for process in processes:
            if is_alive(process):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, number)
        until = time.monotonic() + limit_s
        while any(map(is_alive, processes)) and time.monotonic() < until:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.05)
    if state.containers and (directory / "compose.yml").exists() and shutil.which("docker"):
        with suppress(HostError):
            _compose(directory, "down")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise HostError(f"{shown(directory)}: another command is at work there; wait until it ends") from None
    finally:
        os.close(descriptor)


def _free_port(host: str, usual: int) -> int:
    """The usual port if nobody listens there, else any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (usual, 0):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"--host {shown(host)}: not an address of this machine")


def _check(options: Options) -> None:
    for run in options.runs:
        if not run.is_dir():
            raise ConfigError(f"{shown(run)}: no such directory; name runs, or a directory that holds runs")
    try:
        loopback = ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        raise ConfigError(f"--host {shown(options.host)}: give an IP address, such as 127.0.0.1") from None
    if (options.web_config is None) != (options.login is None):
        raise ConfigError("--web-config and --login belong together: Prometheus' users, and one of them to ask as")
    if not loopback and options.login is None:
        raise ConfigError(f"--host {options.host}: others could read everything; pass --web-config and --login, too")
    if options.login is not None:
        read_login(options.login)
    for job, address in options.also:
        if job not in ("node", "gpu", "serving") or not _ADDRESS.fullmatch(address):
            raise ConfigError(
                f"--target {shown(f'{job}={address}')}: write node, gpu or serving, as in gpu=10.0.0.7:9400"
            )


def as_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1)
