"""How a user can have a development cluster on this machine: hosts in namespaces, or plain daemons."""

import os
import subprocess
from pathlib import Path

from glmforge.errors import ConfigError, HostError
from glmforge_ops.dev.host_processes import NAMESPACES
from glmforge_ops.dev.options import DevOptions, Mode
from glmforge_ops.dev.packages import find
from glmforge_ops.dev.places import Places, login_shell
from glmforge_ops.dev.state import ClusterState

_LOST = (
    "all nodes share this machine's name, address, /dev/shm and disk",
    "links cannot be cut or limited, and no node has a clock of its own",
)
_NO_DEVICES = "GPUs are plain files: Slurm counts them, but does not set CUDA_VISIBLE_DEVICES"


def choose_mode(places: Places, options: DevOptions) -> tuple[Mode, str]:
    """The mode wanted, or the best there is, and why it is plain.

    Raises `HostError` or `ConfigError` where the options cannot be met.
    """
    refusal = "a plain cluster was asked for" if options.mode == "plain" else namespaces_refusal()
    if refusal is None:
        if options.bare and places.directory.is_relative_to(Path.home()):
            raise ConfigError(f"{places.directory}: bare nodes do not see this home directory; set another --directory")
        return "namespaces", ""
    for name, asked in (("namespaces", options.mode), ("bare", options.bare), ("link_rate", options.link_rate)):
        if asked and asked != "plain":
            raise HostError(f"{name}: each node must be a host in namespaces of its own, but {refusal}")
    return "plain", refusal


def lost(places: Places, state: ClusterState) -> list[str]:
    """What a plain cluster lacks, in lines for its user; nothing if it is none."""
    if state.mode == "namespaces":
        return []
    lines = list(_LOST)
    if state.options.gpus and not (places.gpus / "nvidia0").is_char_device():
        lines.append(_NO_DEVICES)
    if not state.ssh:
        lines.append(f"there are no ssh servers: {plain_ssh_refusal()}")
    return [f"this is a plain cluster ({state.why_plain}):", *(f"  {line}" for line in lines)]


def plain_ssh_refusal() -> str | None:
    """Why a plain cluster has no ssh servers; None if it has."""
    if find("sshd") is None or find("ssh-keygen") is None:
        return "openssh-server is not installed"
    shell = login_shell()
    if Path(shell).name in ("nologin", "false"):
        return f"your login shell is {shell}"
    if os.geteuid() == 0 and not Path("/run/sshd").is_dir():
        return "there is no /run/sshd, which sshd needs when root starts it"
    return None


def namespaces_refusal() -> str | None:
    """Why this process may not make hosts in namespaces; None if it may."""
    if os.geteuid() != 0:
        return "you are not root"
    # `ip` may have to be installed first.
    attempt = ["ip", "link", "add", "one", "type", "veth", "peer", "name", "two"] if find("ip") else ["true"]
    command = ["unshare", *NAMESPACES, "--fork", "--mount-proc", *attempt]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no command 'unshare'"
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else said[-1] if said else "unshare fails"
