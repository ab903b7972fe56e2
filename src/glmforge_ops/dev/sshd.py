"""An ssh server on each host: real keys, and a client's configuration that knows every host's key and takes no other.

Each host has a host key of its own, so that a changed one can be told. One key of the cluster's own opens all hosts; it
never leaves the cluster's directory.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from glmforge.errors import HostError
from glmforge_ops.dev.host_processes import CLUSTER_MARK, HOST_MARK
from glmforge_ops.dev.places import Places, user_name
from glmforge_ops.dev.state import ClusterState, HostRecord

_SERVER = """Port {port}
ListenAddress {address}
HostKey {host_key}
AuthorizedKeysFile {authorized_keys}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 500
PidFile {pid_file}
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
SetEnv {environment}
"""
# StrictModes would refuse every directory below /tmp.

_CLIENT = """Host {name}
  HostName {address}
  Port {port}
  HostKeyAlias {name}
"""
_CLIENT_OF_ALL = """Host *
  User {user}
  IdentityFile {directory}/ssh/key
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/ssh/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  PasswordAuthentication no
  LogLevel ERROR
"""


LISTENING = b"Server listening on"
"""What the log says as soon as connections are taken."""

OWN_HOME = "GLMFORGE_DEV_OWN_HOME"
"""Variable of sessions whose home directory is that of the machine's user: no place for keys of a cluster."""

FAKETIME = "/usr/$LIB/faketime/libfaketime.so.1"
"""As the dynamic loader reads it: $LIB is the directory of the machine's architecture."""


def key_file(places: Places, host: str) -> Path:
    return places / f"ssh/{host}.host_key"


def server_config_file(places: Places, host: str) -> Path:
    return places / f"ssh/{host}.sshd_config"


def make_keys(places: Places, hosts: Sequence[str]) -> None:
    """A key for each host and the one that opens them, all at the same time."""
    files = [key_file(places, host) for host in hosts] + [places / "ssh/key"]
    comments = [*hosts, "glmforge-dev"]
    makers = [
        subprocess.Popen(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for file, comment in zip(files, comments, strict=True)
    ]
    for maker in makers:
        _, said = maker.communicate()
        if maker.returncode != 0:
            raise HostError(f"{places.directory}: ssh-keygen fails: {said.strip()}")
    (places / "ssh/authorized_keys").write_text((places / "ssh/key.pub").read_text())


def write_client_files(places: Places, state: ClusterState) -> None:
    """known_hosts and the configuration that `ssh -F` takes."""
    known, config = "", ""
    for name, record in state.hosts.items():
        kind, key, *_ = key_file(places, name).with_suffix(".host_key.pub").read_text().split()
        known += f"{name} {kind} {key}\n"
        port = record.ports.get("sshd", 22)
        config += _CLIENT.format(name=name, address=record.address, port=port)
    (places / "ssh/known_hosts").write_text(known)
    places.ssh_config.write_text(config + _CLIENT_OF_ALL.format(user=user_name(), directory=places.directory))


def server_config(places: Places, state: ClusterState, host: str) -> str:
    """sshd_config of a host. What it starts sees the time that the host takes it to be."""
    record = state.hosts[host]
    keys = [str(places / "ssh/authorized_keys")]
    if state.options.bare:
        keys.append(".ssh/authorized_keys")
    return _SERVER.format(
        port=record.ports.get("sshd", 22),
        address=record.address if state.mode == "plain" else "0.0.0.0",
        pid_file="none" if state.mode == "plain" else "/run/sshd.pid",
        host_key=key_file(places, host),
        authorized_keys=" ".join(keys),
        environment=" ".join(f"{name}={value}" for name, value in session_environment(places, state, host).items()),
    )


def session_environment(places: Places, state: ClusterState, host: str) -> dict[str, str]:
    """Variables of every session on a host."""
    variables = {CLUSTER_MARK: str(places.directory), HOST_MARK: f"{host}@{places.directory}"}
    if not state.options.bare:
        variables[OWN_HOME] = "1"
    if state.options.slurm:
        variables["SLURM_CONF"] = str(places.slurm_conf)
    return variables | clock_environment(state.hosts[host])


def clock_environment(record: HostRecord) -> dict[str, str]:
    """Variables under which a program takes another time for the present."""
    if not record.clock_offset_s:
        return {}
    return {"LD_PRELOAD": FAKETIME, "FAKETIME": f"{record.clock_offset_s:+f}"}
