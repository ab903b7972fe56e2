"""A development cluster on disk: its options, its directory, and the state that commands read and write there."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glmforge.errors import ConfigError, HostError
from glmforge.files import read_text, shown
from glmforge.runtime.process import ProcessIdentity, is_alive

HEAD = "head"
"""The host of the controller, where jobs are submitted; it is not a node."""

MAX_NODES = 200
"""Limited by the addresses of a cluster's network."""

LONGEST = 107 - len(f"/spool/node{MAX_NODES}/node{MAX_NODES}_99999999.4294967291")
"""Bytes of the directory of a cluster with Slurm: the kernel allows 107 for the path of a job step's socket."""

Mode = Literal["namespaces", "plain"]
"""`namespaces`: each node is a host of its own. `plain`: daemons of this user on the loopback, named like nodes."""

_LIMITS = {
    "nodes": (1, MAX_NODES),
    "gpus": (0, 64),
    "cpus": (1, 1024),
    "slurmd_timeout_s": (3, 65533),
    "grace_time_s": (0, 65533),
    "first_job": (1, 1_000_000),
}
_SAFE_PATH = re.compile(r"(/[A-Za-z0-9_+.-]+)+")  # needs no quotes in Slurm's files or in a shell
_HIDDEN = ("/run", "/var/run", "/dev", "/proc", "/sys")  # every host has its own
_MARK, _STATE = ".glmforge-dev-cluster", "cluster.json"


@dataclass(frozen=True, kw_only=True)
class DevOptions:
    """Raises `ConfigError` for values that cannot be used.

    Attributes:
        gpus: per node: device files without a device.
        cpus: that each node reports, not those of this machine.
        slurm: False: only hosts with ssh servers.
        slurmd_timeout_s: seconds without a response after which Slurm marks a node down.
        grace_time_s: seconds from the warning of a job in `main` to its end when an urgent job preempts it.
        first_job: Slurm's first job number. Ports derive from it: plain clusters side by side need different ones.
        bare: nodes that are still to be set up: each with an empty home directory of its own, and no ssh configuration.
        shm_size: of each node's /dev/shm, as mount(8) writes it.
        mode: None: namespaces where that is allowed, else plain.
    """

    nodes: int = 3
    gpus: int = 8
    cpus: int = 8
    slurm: bool = True
    slurmd_timeout_s: int = 30
    grace_time_s: int = 300
    first_job: int = 1
    bare: bool = False
    shm_size: str = "50%"
    mode: Mode | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} {getattr(self, name)}: must be between {least} and {most}")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))


def default_directory() -> Path:
    """Where a cluster is if no directory is given."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "glmforge", "dev", "default")


@dataclass(frozen=True)
class Places:
    """The directory of a cluster, which holds everything that it writes.

    Raises `ConfigError` for a directory that cannot be used.
    """

    directory: Path

    def __post_init__(self) -> None:
        path = str(self.directory)
        if not _SAFE_PATH.fullmatch(path) or ".." in self.directory.parts:
            raise ConfigError(f"{shown(path)}: use an absolute --directory of letters, digits and _+.- for Slurm")
        if any(self.directory.is_relative_to(hidden) for hidden in _HIDDEN):
            raise ConfigError(f"{path}: hosts of the cluster cannot see it; set another --directory")

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    @property
    def slurm_conf(self) -> Path:
        return self / "slurm/slurm.conf"

    @property
    def ssh_config(self) -> Path:
        return self / "ssh/config"

    def host(self, name: str) -> Path:
        return self / "hosts" / name

    def host_key(self, name: str) -> Path:
        return self / f"ssh/{name}.host_key"

    def spool(self, name: str) -> Path:
        """Directory of slurmd, with the sockets of job steps."""
        return self / "spool" / name

    def log(self, host: str, daemon: str) -> Path:
        return self / f"log/{host}.{daemon}.log"

    def make(self, hosts: tuple[str, ...]) -> None:
        """Make all directories; the lock must be held."""
        for name in ("slurm", "munge", "state", "gpus", "ssh", "log", "local", "hosts", "spool"):
            (self / name).mkdir(mode=0o700)
        for host in hosts:
            for path in (self.host(host), self.host(host) / "disk", self.host(host) / "home", self.spool(host)):
                path.mkdir(mode=0o700)

    def is_ours(self) -> bool:
        """Whether this is the directory of a cluster, running or not."""
        return (self / _MARK).exists()

    def clear(self, *, keep_logs: bool = False) -> None:
        """Remove everything but the mark, by which the next `up` recognises the directory."""
        for path in self.directory.iterdir():
            if path.name != _MARK and not (keep_logs and path.name == "log"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def remove(self) -> None:
        """Remove everything, and the directory."""
        self.clear()
        (self / _MARK).unlink()  # last: a half removed directory is still recognised
        self.directory.rmdir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make the directory if it is missing, and lock it against other commands.

        Raises `HostError` if another command holds the lock, or the directory is not a cluster's and not empty.
        """
        try:
            while (descriptor := self._lock_mark()) is None:  # another command has removed it meanwhile
                pass
        except BlockingIOError:
            raise HostError(f"{self.directory}: locked by another command; wait until it ends") from None
        except OSError as error:
            raise HostError(f"{self.directory}: {error.strerror}; set a --directory that you can write to") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock_mark(self) -> int | None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.is_ours() and any(self.directory.iterdir()):
            raise HostError(f"{self.directory}: is not empty; use a new or an empty directory")
        with suppress(FileNotFoundError):
            descriptor = os.open(self / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (self / _MARK).stat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)
        return None


class HostRecord(BaseModel):
    """One host: its address, its first process, and ports of daemons that are not the usual ones."""

    model_config = ConfigDict(extra="forbid")

    address: str = "127.0.0.1"
    keeper: ProcessIdentity | None = None
    ports: dict[str, int] = {}
    cut: bool = False

    @property
    def state(self) -> Literal["up", "cut", "failed"]:
        if self.keeper is None or not is_alive(self.keeper):
            return "failed"
        return "cut" if self.cut else "up"


class ClusterState(BaseModel):
    """A cluster, as commands that change it leave it; `uplink` is the interface by which this machine reaches it."""

    model_config = ConfigDict(extra="forbid")

    places: Places
    options: DevOptions
    mode: Mode = "plain"
    hosts: dict[str, HostRecord] = {}
    why_plain: str = ""
    uplink: str | None = None
    uplink_index: int = 0

    @property
    def is_running(self) -> bool:
        return self.hosts[HEAD].state != "failed"

    def pid(self, host: str) -> int:
        """Of the first process of a host that is up."""
        keeper = self.hosts[host].keeper
        assert keeper is not None
        return keeper.pid

    def port(self, host: str, daemon: str, usual: int) -> int:
        return self.hosts[host].ports.get(daemon, usual)

    def write(self) -> None:
        partial = self.places / f"{_STATE}.partial"
        partial.write_text(self.model_dump_json(indent=1) + "\n")
        partial.replace(self.places / _STATE)


def read_state(places: Places) -> ClusterState | None:
    """None if there is no cluster. Raises `HostError` if the file is damaged."""
    if not (file := places / _STATE).exists():
        return None
    try:
        state = ClusterState.model_validate_json(read_text(file, error=HostError, max_bytes=1 << 22))
        if set(state.hosts) == {HEAD, *state.options.node_names} and state.places == places:
            return state
    except (ValidationError, ConfigError):
        pass
    raise HostError(f"{shown(file)}: invalid state of a development cluster; run: glmforge cluster dev down")
