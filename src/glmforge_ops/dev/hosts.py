"""Hosts of a development cluster: the programs that they need, and their processes: started, found and killed.

A host is up as long as its first process (`templates/host.sh`). With namespaces that is process 1 of the host: the
kernel ends everything else of the host with it, and the nodes with the head, since their namespaces of process ids lie
in the head's. No namespace has a name, so nothing of them outlives their processes.

Every process of a cluster carries marks in its environment, by which it is found, also after a crash of what
started it. `python -m glmforge_ops.dev.hosts DIRECTORY` kills all that belong to the cluster in DIRECTORY.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from glmforge.errors import HostError
from glmforge.runtime.process import ProcessIdentity, identify, is_alive
from glmforge_ops.dev.state import HEAD, ClusterState, Places
from glmforge_ops.hosts.machines import printed_by

NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
CLUSTER_MARK, HOST_MARK = "GLMFORGE_DEV_CLUSTER", "GLMFORGE_DEV_HOST"
"""Variables of every process: directory of the cluster, name of the host."""

# Program -> Debian package.
_HOSTS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"} | {
    "sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"
}  # fmt: skip
_SLURM = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
_INSTALL_LIMIT_S = 1200.0
_END_LIMIT_S = 30.0
_POLL_S = 0.02
_HOST_SCRIPT = Path(__file__).with_name("templates") / "host.sh"
_DAEMON_SCRIPT = 'ended=$1; shift; "$@"; echo "$0 $?" >>"$ended"'


def needed(*, slurm: bool, hosts: bool) -> dict[str, str]:
    """Programs that Slurm, and hosts in namespaces, need, with the Debian package of each."""
    return (_HOSTS if hosts else {}) | (_SLURM if slurm else {})


def find(program: str) -> str | None:
    """Path of a program; daemons may be outside PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])
    return shutil.which(program, path=path)


def ensure(programs: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Install what is missing if this is root on Debian. Raises `HostError` where that is not possible."""
    missing = [program for program in programs if find(program) is None]
    if not missing:
        return
    packages = sorted({programs[program] for program in missing})
    install = f"apt-get install {' '.join(packages)}"
    if os.geteuid() != 0 or find("apt-get") is None:
        raise HostError(f"missing: {', '.join(missing)}; install as root (Debian: {install})")
    say(f"installing {', '.join(packages)}")
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        printed_by(
            *("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *command),
            environment=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            limit_s=_INSTALL_LIMIT_S,
            missing=install,
            otherwise=f"try it yourself: {install}",
        )


def namespaces_refusal() -> str | None:
    """Why this process may not make hosts in namespaces; None if it may."""
    if os.geteuid() != 0:
        return "you are not root"
    if find("unshare") is None:
        return "'unshare' is not installed"
    # `ip` may not be installed yet.
    attempt = ["ip", "link", "add", "one", "type", "veth", "peer", "name", "two"] if find("ip") else ["true"]
    command = ["unshare", *NAMESPACES, "--fork", "--mount-proc", *attempt]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["unshare failed"])[-1] if done.returncode else None


def environment_of(places: Places, host: str | None = None) -> dict[str, str]:
    """Variables of a process in the cluster: this process's without Slurm's, and the marks."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SLURMD_"))}
    path = os.pathsep.join([outer.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
    marks = {CLUSTER_MARK: str(places.directory), "SLURM_CONF": str(places.slurm_conf)}
    return outer | {"PATH": path} | marks | ({HOST_MARK: host} if host else {})


def start_hosts(state: ClusterState, names: Sequence[str], tie: int | None = None) -> None:
    """Start hosts without daemons, all at the same time; `state` gets their first processes.

    `tie`: a file descriptor; the cluster ends when its other end is closed. Raises `HostError` if a host fails.
    """
    processes = {name: _launch(state, name, tie) for name in names}
    lines = {}
    for name, process in processes.items():
        with process:
            assert process.stdout is not None
            lines[name] = process.stdout.readline().strip()
    for name, line in lines.items():
        if not line.isdecimal():
            raise HostError(f"{name}: cannot be started: {last_line(state.places, name, 'host')}")
        state.hosts[name].keeper, state.hosts[name].cut = identify(int(line)), False


def _launch(state: ClusterState, name: str, tie: int | None) -> "subprocess.Popen[str]":
    places, home = state.places, str(Path.home()) if state.options.bare else ""
    command = ["sh", str(_HOST_SCRIPT), state.mode, name, str(places.directory), state.options.shm_size, home]
    if name == HEAD:  # what it does when the tie ends
        kill = [sys.executable, "-m", "glmforge_ops.dev.hosts", str(places.directory)]
        command += ["true"] if state.mode == "namespaces" else kill
    if state.mode == "namespaces":
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child=KILL", *command]
        if name != HEAD:
            command = entering(state, HEAD, *command, namespaces=["--pid"])
    (places.host(name) / "ended").unlink(missing_ok=True)
    with places.log(name, "host").open("wb") as log:
        stdin = subprocess.DEVNULL if tie is None else tie
        variables = environment_of(places, name)
        return subprocess.Popen(
            ["setsid", "--fork", *command], stdin=stdin, stdout=subprocess.PIPE, stderr=log, text=True, env=variables
        )


def start_daemon(state: ClusterState, host: str, daemon: str, *arguments: str) -> None:
    """Start a daemon on a host that is up; its end is noted, see `ended_daemons`."""
    # By its whole path, as sshd demands; daemons may be outside PATH.
    ended = f"{state.places.host(host)}/ended"
    command = ["sh", "-c", _DAEMON_SCRIPT, daemon, ended, find(daemon) or daemon, *arguments]
    command = entering(state, host, "setsid", "--fork", *command, directory="/")
    variables = environment_of(state.places, host)
    with state.places.log(host, daemon).open("ab") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, cwd="/", check=True)


def ended_daemons(places: Places, host: str) -> list[str]:
    """Lines `DAEMON STATUS` of daemons that have ended since their host was started."""
    file = places.host(host) / "ended"
    return file.read_text().splitlines() if file.exists() else []


def last_line(places: Places, host: str, daemon: str) -> str:
    """Of a daemon's log: the last line with a fatal error, or the last one."""
    file = places.log(host, daemon)
    lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
    return ([line for line in lines if "fatal" in line.lower()] or lines or ["its log is empty"])[-1]


def entering(
    state: ClusterState, host: str, *command: str, namespaces: Sequence[str] = NAMESPACES, directory: str | None = None
) -> list[str]:
    """Command line that runs a command on a host, in `directory` (default: the current one)."""
    if state.mode == "plain":
        return list(command)
    there = [f"--wdns={directory or Path.cwd()}"] if "--mount" in namespaces else []
    return ["nsenter", f"--target={state.pid(host)}", *namespaces, *there, "--", *command]


def end_processes(places: Places, host: str | None = None, keepers: Sequence[ProcessIdentity] = ()) -> None:
    """Kill all processes of a host, or of the cluster, and wait until they and `keepers` are gone.

    Whoever calls this from within is spared. Raises `HostError` if some do not end.
    """
    spared = {os.getpid(), *(process.pid for process in psutil.Process().parents())}

    def none_left() -> bool:
        left = [process for process in _processes(places, host) if process.pid not in spared]
        for process in left:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
        return not left and not any(map(is_alive, keepers))

    wait_until(none_left, _END_LIMIT_S, f"{host or places.directory}: processes do not end")


def _processes(places: Places, host: str | None) -> list[psutil.Process]:
    """Those with marks, and their descendants: jobs may have another environment."""
    found = {process.pid: process for process in psutil.process_iter(["ppid", "status", "environ"])}
    marked = {pid for pid, process in found.items() if _is_marked(process.info["environ"] or {}, places, host)}

    def is_ours(pid: int) -> bool:
        while pid in found and pid not in marked:
            pid = found[pid].info["ppid"]
        return pid in marked

    alive = (pid for pid, process in found.items() if process.info["status"] != psutil.STATUS_ZOMBIE)
    return [found[pid] for pid in alive if is_ours(pid)]


def _is_marked(environment: Mapping[str, str], places: Places, host: str | None) -> bool:
    node = environment.get("SLURMD_NODENAME")  # of a job, which may have been submitted elsewhere, without marks
    in_job = node is not None and environment.get("SLURM_CONF") == str(places.slurm_conf)
    if not in_job and environment.get(CLUSTER_MARK) != str(places.directory):
        return False
    return host is None or host == (node or environment.get(HOST_MARK))


def wait_until(reached: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """Wait for other processes. Raises `HostError` with `otherwise` after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > deadline:
            raise HostError(f"{otherwise} (limit {limit_s:g} s)")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    end_processes(Places(Path(sys.argv[1])))
