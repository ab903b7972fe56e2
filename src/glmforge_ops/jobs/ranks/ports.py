"""A port on this machine that no other job of ours is about to use.

A port that is free now may be taken before the ranks listen on it, perhaps by another job that looked at the same
moment. So each number has a file, which `reserve` marks as promised for `PROMISED_S`, and which the rank that listens
holds locked while it runs. Ports lie below those that Linux gives to outgoing connections.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from glmforge.errors import LaunchError

FIRST_PORT, NUM_PORTS = 20_000, 10_000
PROMISED_S = 120.0
_DIRECTORY = Path("/tmp/glmforge-ports")


def reserve(number: int, directory: Path = _DIRECTORY) -> int:
    """A free port, the same for the same `number` as long as that is free. Raises `LaunchError` if none is."""
    for offset in range(NUM_PORTS):
        port = FIRST_PORT + (number + offset) % NUM_PORTS
        if _promise(port, directory):
            return port
    raise LaunchError(f"no port from {FIRST_PORT} to {FIRST_PORT + NUM_PORTS - 1} is free here; give --port")


def hold(port: int, directory: Path = _DIRECTORY) -> int | None:
    """Keep a port from being promised to others until the returned file is closed; None if another holds it."""
    file = _lock(port, directory)
    return None if file is None or file < 0 else file


def is_free(port: int) -> bool:
    """Whether a server could listen there now, on all of the machine's addresses."""
    for family, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                server.bind((any_address, port))
                server.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False  # anything else: this machine has no IPv6, or no IPv4
    return True


def _promise(port: int, directory: Path) -> bool:
    file = _lock(port, directory)
    if file is None:
        return False
    if file < 0:
        return is_free(port)
    try:
        status = os.fstat(file)
        is_promised = status.st_size > 0 and time.time() - status.st_mtime < PROMISED_S
        if is_promised or not is_free(port):
            return False
        os.pwrite(file, b"p", 0)
        os.utime(file)
    finally:
        os.close(file)
    return True


def _lock(port: int, directory: Path) -> int | None:
    """The port's file, locked; None if another has it, -1 if there can be no such files (a read-only /tmp)."""
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            directory.chmod(0o1777)  # of all users of the machine
        file = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except PermissionError:
        return None  # another user's
    except OSError:
        return -1
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
