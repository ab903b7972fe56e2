"""Which daemons run on each host of a development cluster, and how a keeper starts them."""

import secrets
from pathlib import Path
from typing import Any

from glmforge_ops.dev.accounting import database_command
from glmforge_ops.dev.host_processes import daemon_environment
from glmforge_ops.dev.options import HEAD
from glmforge_ops.dev.packages import find
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.sshd import server_config_file
from glmforge_ops.dev.state import ClusterState

_MUNGE_FILES = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def host_spec(places: Places, state: ClusterState, name: str, *, tied: bool) -> dict[str, Any]:
    """What keeper.py reads: name, mounts and daemons of a host."""
    commands = _head_daemons(places, state) if name == HEAD else _node_daemons(places, state, name)
    environment = daemon_environment(places)
    daemons = {
        daemon: {"command": command, "environment": environment, "log": str(places.log(name, daemon))}
        for daemon, command in commands.items()
    }
    namespaces = state.mode == "namespaces"
    mounts = _mounts(places, state, name) if namespaces else []
    head = state.hosts[HEAD].keeper
    return {
        "hostname": name,
        "namespaces": namespaces,
        "tied": tied,
        "head": head.pid if head is not None and not namespaces else None,
        "mounts": mounts,
        "daemons": daemons,
    }


def make_munge_key(places: Places) -> None:
    key = places / "munge/key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def _head_daemons(places: Places, state: ClusterState) -> dict[str, list[str]]:
    daemons = _sshd(places, HEAD, state)
    if state.options.slurm:
        # --force: the path to its socket may be closed to others, who are not to use it.
        files = [f"--{option}={places / 'munge' / file}" for option, file in _MUNGE_FILES.items()]
        daemons["munged"] = [_path("munged"), "--foreground", "--force", *files]
        daemons["slurmctld"] = [_path("slurmctld"), "-D", "-f", str(places.slurm_conf)]
    if state.options.accounting:
        daemons["slurmdbd"] = [_path("slurmdbd"), "-D"]
        daemons["mariadbd"] = database_command(places)
    return daemons


def _node_daemons(places: Places, state: ClusterState, name: str) -> dict[str, list[str]]:
    daemons = _sshd(places, name, state)
    if state.options.slurm:
        daemons["slurmd"] = [_path("slurmd"), "-D", "-N", name, "-f", str(places.slurm_conf)]
    return daemons


def _sshd(places: Places, name: str, state: ClusterState) -> dict[str, list[str]]:
    if not state.ssh:
        return {}
    return {"sshd": [_path("sshd"), "-D", "-e", "-f", str(server_config_file(places, name))]}


def _path(program: str) -> str:
    """sshd wants to be called by its whole path; ssh servers and daemons are not on everybody's PATH."""
    return find(program) or program


def _mounts(places: Places, state: ClusterState, name: str) -> list[list[str]]:
    """Each host's own: processes, devices of the kernel, memory, run files; and what names the others."""
    mounts = [
        ["proc", "/proc", "proc", ""],
        ["sysfs", "/sys", "sysfs", ""],
        ["tmpfs", "/dev/shm", "tmpfs", f"size={state.options.shm_size}"],
        ["tmpfs", "/run", "tmpfs", "mode=755,size=64m"],
        ["", "/run/sshd", "directory", ""],
        ["", "/run/lock", "directory", ""],
        [str(places / "hosts_file"), "/etc/hosts", "bind", ""],
    ]
    if Path("/sys/fs/cgroup").is_dir():
        mounts.insert(2, ["/sys/fs/cgroup", "/sys/fs/cgroup", "bind", ""])
    if name != HEAD:
        mounts.append([str(places.disk(name)), str(places.local), "bind", ""])
    if state.options.bare:
        mounts.append([str(places.home(name)), str(Path.home()), "bind", ""])
    elif Path("/etc/ssh/ssh_config").exists():
        mounts.append([str(places.ssh_config), "/etc/ssh/ssh_config", "bind", ""])
    return mounts


def hosts_file(state: ClusterState) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    return "\n".join([*lines, *(f"{record.address} {name}" for name, record in state.hosts.items()), ""])
