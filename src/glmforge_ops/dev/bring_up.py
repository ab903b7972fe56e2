"""Starting and ending the hosts and daemons of a development cluster."""

import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from glmforge.errors import ConfigError, HostError
from glmforge_ops.dev import network, services
from glmforge_ops.dev.hosts import (
    end_processes,
    ended_daemons,
    ensure,
    last_line,
    namespaces_refusal,
    needed,
    start_daemon,
    start_hosts,
    wait_until,
)
from glmforge_ops.dev.state import HEAD, ClusterState, HostRecord, Places

_START_LIMIT_S = 60.0
_USABLE_LIMIT_S = 180.0
"""slurmctld contacts a node that was down for long only now and then."""


def choose_mode(state: ClusterState) -> None:
    """Raises `HostError` or `ConfigError` for options that need namespaces where there are none."""
    options, directory = state.options, state.places.directory
    state.why_plain = "as asked for" if options.mode == "plain" else namespaces_refusal() or ""
    state.mode = "plain" if state.why_plain else "namespaces"
    if state.why_plain and (options.bare or options.mode == "namespaces"):
        name = "bare" if options.bare else "namespaces"
        raise HostError(f"{name}: each node must be a host in namespaces of its own, but {state.why_plain}")
    if options.bare and directory.is_relative_to(Path.home()):
        raise ConfigError(f"{directory}: bare nodes do not see this home directory; set another --directory")


def bring_up(state: ClusterState, say: Callable[[str], None]) -> int:
    """Start a whole cluster. Returns a file descriptor: the cluster ends when it is closed without a line written."""
    choose_mode(state)
    options, places, nodes = state.options, state.places, state.options.node_names
    ensure(needed(slurm=options.slurm, hosts=state.mode == "namespaces"), say)
    state.hosts = {name: HostRecord() for name in (HEAD, *nodes)}
    places.make((HEAD, *nodes))
    for file in (places / "hosts_file", places.ssh_config):  # mounted now, written soon
        file.touch()
    if state.mode == "plain":
        daemons = [(HEAD, "slurmctld"), *((node, "slurmd") for node in nodes)]
        for (name, daemon), port in zip(daemons, free_ports(len(daemons)), strict=True):
            state.hosts[name].ports[daemon] = port
    theirs, ours = os.pipe()
    try:
        start_hosts(state, [HEAD], tie=theirs)
        if state.mode == "namespaces":
            network.make_bridge(state)
            names = "".join(f"{record.address} {name}\n" for name, record in state.hosts.items())
            (places / "hosts_file").write_text(f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{names}")
            services.write_ssh_files(state)
            _start_sshd(state, HEAD)
        for number in range(options.gpus):
            _make_device(places / f"gpus/nvidia{number}")
        if options.slurm:
            services.write_slurm_files(state)
            _start_slurm(state)
        since = start_nodes(state, nodes)
        wait_until_up(state, nodes, [HEAD, *nodes], since)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return ours


def start_nodes(state: ClusterState, nodes: Sequence[str]) -> int:
    """Start nodes with their links and daemons. Returns the time before that, in seconds."""
    since = int(time.time())
    start_hosts(state, nodes)
    if state.mode == "namespaces":
        network.connect(state, nodes)
    for node in nodes:
        _start_sshd(state, node)
        if state.options.slurm:
            start_daemon(state, node, "slurmd", "-D", "-N", node, "-f", str(state.places.slurm_conf))
    return since


def wait_until_up(state: ClusterState, nodes: Sequence[str], watched: Sequence[str], since: int) -> None:
    """Until ssh servers answer, and Slurm would give these nodes jobs; their slurmd started at `since` or later."""
    if state.mode == "namespaces":

        def answer() -> bool:
            return all(_answers(state, node, "sshd", 22, b"SSH-") for node in nodes)

        _wait(state, answer, watched, "ssh servers do not start")
    if state.options.slurm:

        def are_usable() -> bool:
            return services.are_usable(state, nodes, since)

        _wait(state, are_usable, watched, "nodes of Slurm do not start", _USABLE_LIMIT_S)


def end_cluster(places: Places, state: ClusterState | None) -> None:
    """End all processes, also those that the state does not mention, and remove the uplink."""
    hosts = state.hosts.values() if state is not None else ()
    end_processes(places, keepers=[record.keeper for record in hosts if record.keeper is not None])
    if state is not None:
        network.remove_uplink(state)


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback that are free now."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def _start_sshd(state: ClusterState, host: str) -> None:
    if state.mode == "namespaces":
        start_daemon(state, host, "sshd", "-D", "-e", "-f", f"{state.places.directory}/ssh/{host}.sshd_config")


def _start_slurm(state: ClusterState) -> None:
    """Daemons of the head, one after the other."""
    munge = state.places / "munge"
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    # --force: it refuses a socket in a directory that others cannot enter.
    options = ["--foreground", "--force", *(f"--{option}={munge / file}" for option, file in files.items())]
    start_daemon(state, HEAD, "munged", *options)
    _wait(state, (munge / "socket").is_socket, [HEAD], "munged does not start")
    start_daemon(state, HEAD, "slurmctld", "-D", "-f", str(state.places.slurm_conf))
    # A slurmd that does not find the controller tries again a second later.
    _wait(state, lambda: _answers(state, HEAD, "slurmctld", 6817), [HEAD], "slurmctld does not start")


def _wait(
    state: ClusterState,
    reached: Callable[[], bool],
    watched: Sequence[str],
    otherwise: str,
    limit_s: float = _START_LIMIT_S,
) -> None:
    """Wait, unless a daemon of the hosts `watched` ends: then the error has the last line of its log."""

    def reached_with_all_alive() -> bool:
        for host in watched:
            for line in ended_daemons(state.places, host):
                daemon, _, status = line.partition(" ")
                said = last_line(state.places, host, daemon)
                raise HostError(f"{daemon} of {host} ended with status {status}: {said}")
        return reached()

    wait_until(reached_with_all_alive, limit_s, f"{otherwise}; logs are in {state.places / 'log'}")


def _answers(state: ClusterState, host: str, daemon: str, usual_port: int, greeting: bytes = b"") -> bool:
    address = (state.hosts[host].address, state.port(host, daemon, usual_port))
    with suppress(OSError), socket.create_connection(address, 1.0) as server:
        return server.recv(len(greeting)) == greeting if greeting else True
    return False


def _make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # like /dev/null
    except PermissionError:
        path.touch(mode=0o600)
