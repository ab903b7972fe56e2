"""Where everything of a development cluster lies: one directory, which is all that it ever writes to."""

import fcntl
import os
import pwd
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import ConfigError, GlmforgeError, HostError
from glmforge.files import shown

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
SAFE_PATH = re.compile(r"(/[A-Za-z0-9_+.-]+)+")
"""What means nothing but itself in Slurm's files, and in a shell."""
_FOLDERS = ("glmforge", "dev")
_MARK = ".glmforge-dev-cluster"
_SPOOL = "spool"
_LONGEST_SOCKET = f"/{_SPOOL}/node200/node200_99999999.4294967291"
"""Of a job's batch step, which Slurm numbers so."""
LONGEST = 107 - len(_LONGEST_SOCKET)
"""Bytes of the directory of a cluster with Slurm: the kernel takes 107 of a socket's path."""

_HIDDEN = ("/run", "/var/run", "/dev", "/proc", "/sys")
"""What each host has of its own."""


def default_directory(name: str) -> Path:
    """Where the cluster of that name lies if nothing is said. Raises `ConfigError` for what is no name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"cluster name {shown(name)!r}: write lower-case letters, digits and dashes, at most 31")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache, *_FOLDERS, name)


@dataclass(frozen=True)
class Places:
    """Paths in the directory of a cluster."""

    directory: Path

    def __post_init__(self) -> None:
        path = str(self.directory)
        if not SAFE_PATH.fullmatch(path) or ".." in self.directory.parts:
            raise ConfigError(
                f"{shown(path)}: Slurm takes only absolute paths of letters, digits and _+.-; set another --directory"
            )
        if any(self.directory.is_relative_to(hidden) for hidden in _HIDDEN):
            raise ConfigError(f"{path}: hosts of the cluster would not see it; set a --directory elsewhere")

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def check_room_for_sockets(self) -> None:
        """Raises `ConfigError` for a directory that is too long for one with Slurm."""
        if len(str(self.directory)) > LONGEST:
            raise ConfigError(
                f"{self.directory}: Slurm's sockets below it would have too long paths; set a --directory of at most "
                f"{LONGEST} bytes"
            )

    @property
    def state(self) -> Path:
        return self / "cluster.json"

    @property
    def slurm_conf(self) -> Path:
        return self / "slurm/slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self / "munge/socket"

    @property
    def gpus(self) -> Path:
        return self / "gpus"

    @property
    def ssh_config(self) -> Path:
        return self / "ssh/config"

    @property
    def logs(self) -> Path:
        return self / "log"

    @property
    def local(self) -> Path:
        """The local disk, as processes on a node see it."""
        return self / "local"

    def host(self, name: str) -> Path:
        """What is one host's own."""
        return self / "hosts" / name

    def spool(self, name: str) -> Path:
        """What slurmd keeps of a node's jobs, and the sockets of their steps."""
        return self / _SPOOL / name

    def disk(self, name: str) -> Path:
        """Where a node's local disk really lies."""
        return self.host(name) / "disk"

    def home(self, name: str) -> Path:
        """A bare host's home directory."""
        return self.host(name) / "home"

    def log(self, host: str, daemon: str) -> Path:
        return self.logs / f"{host}.{daemon}.log"

    def make(self) -> None:
        """Make the directory, which must not be there or be empty."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(self.directory.iterdir()):
                raise HostError(f"{self.directory}: is not empty; name a new or an empty directory")
            (self / _MARK).touch()
            for name in ("slurm", "munge", "state", "gpus", "ssh", "log", "local", "hosts", _SPOOL):
                (self / name).mkdir(mode=0o700)
        except OSError as error:
            raise _unusable(self.directory, error) from None

    def is_ours(self) -> bool:
        """Whether a cluster has been made here, however it ended."""
        return (self / _MARK).exists()

    def remove(self, *, keep_logs: bool = False) -> None:
        """Remove everything, and the directory; with `keep_logs` both stay, and are known for what they are."""
        if not self.is_ours():
            return
        for path in self.directory.iterdir():
            if path.name == _MARK or (keep_logs and path == self.logs):
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if not keep_logs:
            (self / _MARK).unlink()  # last: what is half removed is still known for what it is
            self.directory.rmdir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else changes this cluster within the block. Raises `HostError` if somebody does just now."""
        path = self.directory.with_name(f".{self.directory.name}.lock")
        try:
            while True:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):
                    if path.stat().st_ino == os.fstat(descriptor).st_ino:
                        break
                os.close(descriptor)  # who held it has removed it meanwhile
        except BlockingIOError:
            os.close(descriptor)
            raise HostError(
                f"{self.directory}: another command is just changing this cluster; wait until it ends"
            ) from None
        except OSError as error:
            raise _unusable(path.parent, error) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            if path.parent.parts[-2:] == _FOLDERS:
                with suppress(OSError):  # other clusters' are there
                    path.parent.rmdir()
                    path.parent.parent.rmdir()


def free_ports(count: int) -> list[int]:
    """So many ports of the loopback that nobody listens on, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


def user_name() -> str:
    """The user as whom all daemons run; a number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def login_shell() -> str:
    """With which ssh would run commands."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/false"  # there is no such account


def _unusable(path: Path, error: OSError) -> GlmforgeError:
    return HostError(f"{path}: {error.strerror}; set a --directory that you can write to")
