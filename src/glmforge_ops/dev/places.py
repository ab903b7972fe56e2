"""The directory of a development cluster: everything that the cluster writes is in it."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import ConfigError, HostError
from glmforge.files import shown

MAX_NODES = 200
"""Limited by the addresses of a cluster's network."""

SAFE_PATH = re.compile(r"(/[A-Za-z0-9_+.-]+)+")
"""Paths that need no quotes in Slurm's files or in a shell."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_MARK = ".glmforge-dev-cluster"
_LONGEST_SOCKET = f"/spool/node{MAX_NODES}/node{MAX_NODES}_99999999.4294967291"
"""Of a job's batch step, which has this number in Slurm."""
LONGEST = 107 - len(_LONGEST_SOCKET)
"""Bytes of the directory of a cluster with Slurm: the kernel allows 107 for a socket's path."""

_HIDDEN = ("/run", "/var/run", "/dev", "/proc", "/sys")
"""Every host has its own."""


def default_directory(name: str) -> Path:
    """Directory of the cluster called `name`. Raises `ConfigError` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"cluster name {shown(name)!r}: use at most 31 lower-case letters, digits and dashes")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "glmforge", "dev", name)


@dataclass(frozen=True)
class Places:
    """Paths in the directory of a cluster. Raises `ConfigError` for a directory that cannot be used."""

    directory: Path

    def __post_init__(self) -> None:
        path = str(self.directory)
        if not SAFE_PATH.fullmatch(path) or ".." in self.directory.parts:
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

    @property
    def logs(self) -> Path:
        return self / "log"

    @property
    def local(self) -> Path:
        """The local disk as processes on a node see it; on this machine it is `host(node) / "disk"`."""
        return self / "local"

    def host(self, name: str) -> Path:
        return self / "hosts" / name

    def spool(self, name: str) -> Path:
        """Directory of slurmd, with the sockets of job steps."""
        return self / "spool" / name

    def log(self, host: str, daemon: str) -> Path:
        return self.logs / f"{host}.{daemon}.log"

    def make(self, hosts: tuple[str, ...]) -> None:
        """Make all directories; the lock must be held."""
        names = ["slurm", "munge", "state", "gpus", "ssh", "log", "local", "hosts", "spool", "accounting"]
        for path in [self / name for name in names] + [self.host(host) for host in hosts]:
            path.mkdir(mode=0o700)
        for host in hosts:
            for path in (self.host(host) / "disk", self.host(host) / "home", self.spool(host)):
                path.mkdir(mode=0o700)

    def is_ours(self) -> bool:
        """Whether this is the directory of a cluster, running or not."""
        return (self / _MARK).exists()

    def clear(self, *, keep_logs: bool = False) -> None:
        """Remove everything but the mark, by which the next `up` recognises the directory."""
        for path in self.directory.iterdir():
            if path.name != _MARK and not (keep_logs and path == self.logs):
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
            while (descriptor := self._lock_mark()) is None:  # somebody has removed it meanwhile
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
        with ExitStack() as stack, suppress(FileNotFoundError):
            descriptor = os.open(self / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (self / _MARK).stat().st_ino == os.fstat(descriptor).st_ino:
                stack.pop_all()
                return descriptor
        return None
