"""Services of a development cluster: the files of Slurm, munge and ssh, and Slurm's own commands on the head.

Each host has an ssh host key of its own, so that a changed one is noticed; clients know all of them and accept no
other. One key of the cluster's own opens all hosts; it never leaves the cluster's directory.
"""

import os
import pwd
import secrets
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import jinja2

from glmforge.errors import HostError
from glmforge_ops.dev.hosts import CLUSTER_MARK, HOST_MARK, entering, environment_of
from glmforge_ops.dev.state import HEAD, ClusterState
from glmforge_ops.hosts.machines import printed_by

_COMMAND_LIMIT_S = 60.0
_OWN_HOME = "GLMFORGE_DEV_OWN_HOME"
"""Set in sessions whose home directory is that of this machine's user: `cluster setup` must not put keys there."""

_USABLE = {"IDLE", "ALLOCATED", "MIXED", "COMPLETING"}
# What is filled in needs no quotes: paths were checked by `Places`, all else is a number or made here.
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def _write_file(state: ClusterState, template: str, path: Path, **values: object) -> None:
    """Write a file from `templates` that only this user can read."""
    values |= {"places": state.places, "state": state, "options": state.options, "head": state.hosts[HEAD]}
    # slurmctld refuses to run under a name that is not its host's.
    controller = HEAD if state.mode == "namespaces" else socket.gethostname().split(".")[0]
    path.touch(mode=0o600)
    path.write_text(_TEMPLATES.get_template(f"{template}.jinja").render(controller=controller, user=_user(), **values))


def write_slurm_files(state: ClusterState) -> None:
    """Files of munge and of Slurm."""
    places, options, slurm = state.places, state.options, state.places / "slurm"
    (places / "munge/key").touch(mode=0o600)
    (places / "munge/key").write_bytes(secrets.token_bytes(128))
    _write_file(state, "slurm.conf", places.slurm_conf)
    gpus = f"Name=gpu File={places / 'gpus'}/nvidia[0-{options.gpus - 1}]" if options.gpus else ""
    (slurm / "gres.conf").write_text("".join(f"NodeName={name} {gpus}\n" for name in options.node_names if gpus))
    # Without this file slurmd looks for cgroups, and ends if there are none.
    (slurm / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")


def write_ssh_files(state: ClusterState) -> None:
    """Keys, all made at the same time, and the configuration of servers and clients."""
    places = state.places
    files = {places / "ssh/key": "glmforge-dev"} | {places.host_key(host): host for host in state.hosts}
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
    known = [f"{host} {places.host_key(host).with_suffix('.host_key.pub').read_text()}" for host in state.hosts]
    (places / "ssh/known_hosts").write_text("".join(known))
    _write_file(state, "ssh_config", places.ssh_config)
    for host in state.hosts:
        session = session_environment(state, host)
        _write_file(state, "sshd_config", places / f"ssh/{host}.sshd_config", host=host, session=session)


def session_environment(state: ClusterState, host: str) -> dict[str, str]:
    """Variables of every session on a host."""
    variables = {CLUSTER_MARK: str(state.places.directory), HOST_MARK: host}
    variables |= {} if state.options.bare else {_OWN_HOME: "1"}
    return variables | ({"SLURM_CONF": str(state.places.slurm_conf)} if state.options.slurm else {})


def run_slurm(state: ClusterState, *command: str, check: bool = True) -> str:
    """Output of a Slurm command on the head. Raises `HostError` if it fails (with `check`) or hangs."""
    return printed_by(
        *entering(state, HEAD, *command, namespaces=["--net", "--uts"]),
        limit_s=_COMMAND_LIMIT_S,
        missing="install Slurm",
        otherwise=f"logs are in {state.places / 'log'}",
        environment=environment_of(state.places),
        check=check,
    )


def node_facts(state: ClusterState) -> dict[str, dict[str, str]]:
    """Node -> State, SlurmdStartTime, ... of `scontrol show node`; empty while the controller does not answer."""
    lines = run_slurm(state, "scontrol", "show", "node", "-o", check=False).splitlines()
    facts = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return {fact["NodeName"]: fact for fact in facts if "NodeName" in fact}


def are_usable(state: ClusterState, nodes: Sequence[str], since: int) -> bool:
    """Whether Slurm would give these nodes jobs, and knows the slurmd that was started not before `since` (seconds).

    Without the time, Slurm's old state of a node that failed a moment ago would be taken for its return.
    """
    facts = node_facts(state)
    return all(name in facts and _is_usable(facts[name], since) for name in nodes)


def _is_usable(fact: dict[str, str], since: int) -> bool:
    try:
        started = time.mktime(time.strptime(fact.get("SlurmdStartTime", ""), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # "None": not registered yet
        return False
    return set(fact.get("State", "").split("+")) <= _USABLE and started >= since


def _user() -> str:
    """The user of all daemons; a number if there is no account."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
