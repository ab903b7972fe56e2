"""An ssh server on each host, and a client's configuration that knows every host's key and accepts no other.

Each host has a host key of its own, so that a changed one is noticed. One key of the cluster's own opens all hosts; it
never leaves the cluster's directory.
"""

import subprocess
from pathlib import Path

from glmforge.errors import HostError
from glmforge_ops.dev.host_processes import CLUSTER_MARK, HOST_MARK
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.slurm import write_file
from glmforge_ops.dev.state import ClusterState

LISTENING = b"Server listening on"
"""In the log as soon as the server accepts connections."""

_OWN_HOME = "GLMFORGE_DEV_OWN_HOME"
"""Set in sessions whose home directory is that of this machine's user: `cluster setup` must not put keys there."""


def key_file(places: Places, host: str) -> Path:
    return places / f"ssh/{host}.host_key"


def write_ssh_files(places: Places, state: ClusterState) -> None:
    """Keys, all made at the same time, and the configuration of servers and clients."""
    files = {places / "ssh/key": "glmforge-dev"} | {key_file(places, host): host for host in state.hosts}
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C"]
    makers = [
        subprocess.Popen([*command, comment, "-f", str(file)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for file, comment in files.items()
    ]
    for maker in makers:
        output = maker.communicate()[1]
        if maker.returncode != 0:
            raise HostError(f"{places.directory}: ssh-keygen failed: {output.decode().strip()}")
    (places / "ssh/authorized_keys").write_text((places / "ssh/key.pub").read_text())
    known = [f"{host} {key_file(places, host).with_suffix('.host_key.pub').read_text()}" for host in state.hosts]
    (places / "ssh/known_hosts").write_text("".join(known))
    write_file(places, state, "ssh_config", places.ssh_config)
    for host in state.hosts:
        session = session_environment(places, state, host)
        write_file(places, state, "sshd_config", places / f"ssh/{host}.sshd_config", host=host, session=session)


def session_environment(places: Places, state: ClusterState, host: str) -> dict[str, str]:
    """Variables of every session on a host."""
    variables = {CLUSTER_MARK: str(places.directory), HOST_MARK: host}
    variables |= {} if state.options.bare else {_OWN_HOME: "1"}
    return variables | ({"SLURM_CONF": str(places.slurm_conf)} if state.options.slurm else {})
