"""ssh servers on this machine that stand for nodes: each sees a directory of its own under one and the same path.

Every server runs in a mount namespace in which its disk is bound over that path, so that commands meet real ssh, real
rsync and tar, and other files on every node. Needs root, sshd and the right to mount.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.distributed import free_port
from helpers.packages import install_or_skip

_SERVER = """Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
"""
_CLIENT = """Host {name}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {directory}/key
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/known_hosts
  LogLevel ERROR
"""


def skip_unless_possible() -> None:
    """Skip the test, saying what is missing, where there can be no such servers."""
    install_or_skip(("ssh", "ssh-keygen", "sshd", "rsync", "unshare"), ("openssh-server", "openssh-client", "rsync"))
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount, for ssh servers that see different disks")


@contextmanager
def ssh_nodes(directory: Path, disks: Sequence[Path], mount_point: Path) -> Iterator[str]:
    """The command ("ssh -F ...") that reaches a server for each disk, under the disk's name, within the block."""
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / key)], check=True)
    shutil.copy(directory / "key.pub", directory / "authorized_keys")
    host_key = (directory / "host_key.pub").read_text()
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for disk in disks:
            port = free_port()
            server, client = directory / f"{disk.name}.server", directory / "ssh_config"
            server.write_text(_SERVER.format(port=port, directory=directory))
            with client.open("a") as stream:
                stream.write(_CLIENT.format(name=disk.name, port=port, directory=directory))
            with (directory / "known_hosts").open("a") as stream:
                stream.write(f"[127.0.0.1]:{port} {host_key}")
            command = f"mount --bind {disk} {mount_point} && exec /usr/sbin/sshd -D -e -f {server}"
            log = (directory / f"{disk.name}.log").open("wb")
            servers.append(subprocess.Popen(["unshare", "-m", "sh", "-c", command], stderr=log, start_new_session=True))
            _wait_for(port, servers[-1], directory / f"{disk.name}.log")
        yield f"ssh -F {directory / 'ssh_config'}"
    finally:
        for process in servers:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server says that it listens, or has ended."""
    while f"port {port}." not in log.read_text():
        assert server.poll() is None, log.read_text()
