"""Hosts of a development cluster as processes: started, entered, ended.

A host lives as long as its keeper (see keeper.py). With namespaces, the nodes' lie within the head's namespace of
process ids: whatever ends the head ends all, and the kernel sees to it. Nothing has a name in the system; the
namespaces' mounts, interfaces and processes go with them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.errors import HostError
from glmforge.runtime.process import ProcessIdentity, identify, is_alive
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.state import HostRecord

NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
CLUSTER_MARK, HOST_MARK = "GLMFORGE_DEV_CLUSTER", "GLMFORGE_DEV_HOST"
"""Variables of every process in a cluster, and of sessions on one of its hosts."""

_END_LIMIT_S = 30.0
_POLL_S = 0.02


@dataclass
class StartedHost:
    """A host whose keeper is told what to start: by this process only, as long as it lives."""

    name: str
    places: Places
    process: "subprocess.Popen[str]"
    keeper: ProcessIdentity

    @property
    def pid(self) -> int:
        return self.keeper.pid

    @property
    def launcher(self) -> ProcessIdentity:
        return identify(self.process.pid)

    def tell(self, line: str) -> None:
        """`start DAEMON` or `detach`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise HostError(f"{self.name}: has ended; see {self.places.log(self.name, 'keeper')}") from None

    def ended_daemons(self) -> list[str]:
        """`DAEMON STATUS` of those that are no more."""
        file = ended_file(self.places, self.name)
        return file.read_text().splitlines() if file.exists() else []


def ended_file(places: Places, host: str) -> Path:
    return places.host(host) / "ended"


def start_hosts(
    places: Places, specs: Mapping[str, Mapping[str, Any]], within: ProcessIdentity | None = None
) -> dict[str, StartedHost]:
    """Start these hosts at the same time; `within` is the head, whose namespaces nodes' lie in.

    A spec is what keeper.py reads. Raises `HostError` with what the first one says that fails.
    """
    processes = {name: _launch(places, name, spec, within) for name, spec in specs.items()}
    hosts = {}
    for name, process in processes.items():
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        process.stdout.close()
        if not line.isdecimal():
            said = places.log(name, "keeper").read_text().strip().splitlines()
            for other in processes.values():
                other.kill()
                other.wait()
            raise HostError(f"{name}: does not come up: {said[-1] if said else 'no reason given'}")
        hosts[name] = StartedHost(name, places, process, identify(int(line)))
    return hosts


def _launch(
    places: Places, name: str, spec: Mapping[str, Any], within: ProcessIdentity | None
) -> "subprocess.Popen[str]":
    directory = places.host(name)
    (directory / "spec.json").write_text(json.dumps({**spec, "ended": str(ended_file(places, name))}, indent=1))
    ended_file(places, name).unlink(missing_ok=True)
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(directory / "spec.json")]
    if spec["namespaces"]:
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child=KILL", *command]
        if within is not None:
            command = ["nsenter", f"--target={within.pid}", "--pid", *command]
    with places.log(name, "keeper").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=daemon_environment(places),
            start_new_session=True,
        )


def daemon_environment(places: Places) -> dict[str, str]:
    """Variables of everything that runs in the cluster: those of this process, but Slurm's, and where Slurm is."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    path = os.pathsep.join([outer.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
    marks = {CLUSTER_MARK: str(places.directory), "SLURM_CONF": str(places.slurm_conf)}
    return outer | {"PATH": path} | marks


def entering(keeper: ProcessIdentity, *command: str, namespaces: Sequence[str] = NAMESPACES) -> list[str]:
    """What runs a command on a host with namespaces, in this process's directory."""
    directory = [f"--wdns={Path.cwd()}"] if "--mount" in namespaces else []
    return ["nsenter", f"--target={keeper.pid}", *namespaces, *directory, "--", *command]


def end_host(record: HostRecord, *, plain: bool) -> None:
    """End all processes of a host at once. Raises `HostError` if that cannot be done."""
    keeper = record.keeper
    if keeper is None:
        return
    # Without namespaces, the keeper ends its processes before itself.
    _send(keeper, signal.SIGTERM if plain else signal.SIGKILL)
    ending = [process for process in (keeper, record.launcher) if process is not None]
    wait_until(lambda: not any(map(_is_there, ending)), _END_LIMIT_S, f"process {keeper.pid} does not end")


def end_marked(mark: str) -> None:
    """End this user's processes with `mark`, NAME=VALUE, in their environment: jobs and commands of a plain cluster.

    Those that this process was started by are spared: a shell on a node may end its own cluster.
    """
    spared = _ancestors()

    def end_those_left() -> bool:
        left = [pid for pid in _marked(mark) if pid not in spared]
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return not left

    wait_until(end_those_left, _END_LIMIT_S, f"processes with {mark} do not end")


def _marked(mark: str) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):  # another user's, or it has just ended
                if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
    return found


def _ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return found


def wait_until(reached: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """Wait for other processes. Raises `HostError` with `otherwise` after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > deadline:
            raise HostError(f"{otherwise} within {limit_s:g} s")
        time.sleep(_POLL_S)


def _send(process: ProcessIdentity, number: signal.Signals) -> None:
    """Send a signal to this process, and to no other that has got its id since."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(descriptor, number)
        except PermissionError:
            raise HostError(f"process {process.pid} is another user's; end the cluster as who started it") from None
        finally:
            os.close(descriptor)


def _is_there(process: ProcessIdentity) -> bool:
    with suppress(ChildProcessError):  # not ours: whose child it is waits for it
        os.waitpid(process.pid, os.WNOHANG)
    return bool(is_alive(process))
