"""Starting and ending the hosts and daemons of a development cluster."""

import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from glmforge.errors import ConfigError, HostError
from glmforge_ops.dev import network, slurm
from glmforge_ops.dev.host_processes import (
    end_processes,
    ended_daemons,
    last_line,
    start_daemon,
    start_hosts,
    wait_until,
)
from glmforge_ops.dev.options import HEAD
from glmforge_ops.dev.packages import ensure, namespaces_refusal, needed
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.sshd import write_ssh_files
from glmforge_ops.dev.state import ClusterState, HostRecord

_START_LIMIT_S = 60.0
_USABLE_LIMIT_S = 180.0
"""slurmctld contacts a node that was down for long only now and then."""


def choose_mode(places: Places, state: ClusterState) -> None:
    """Raises `HostError` or `ConfigError` for options that need namespaces where there are none."""
    options = state.options
    state.why_plain = "--plain was given" if options.mode == "plain" else namespaces_refusal() or ""
    state.mode = "plain" if state.why_plain else "namespaces"
    for name, asked in (("namespaces", options.mode), ("bare", options.bare), ("link_rate", options.link_rate)):
        if state.why_plain and asked and asked != "plain":
            raise HostError(f"{name}: each node must be a host in namespaces of its own, but {state.why_plain}")
    if options.bare and places.directory.is_relative_to(Path.home()):
        raise ConfigError(f"{places.directory}: bare nodes do not see this home directory; set another --directory")


def install_programs(state: ClusterState, say: Callable[[str], None]) -> None:
    hosts, options = state.mode == "namespaces", state.options
    ensure(needed(slurm=options.slurm, accounting=options.accounting, namespaces=hosts, ssh=hosts), say)


def bring_up(places: Places, state: ClusterState) -> int:
    """Start a whole cluster. Returns a file descriptor: the cluster ends when it is closed without a line written."""
    nodes = state.options.node_names
    state.hosts = {name: HostRecord() for name in (HEAD, *nodes)}
    places.make((HEAD, *nodes))
    for file in (places / "hosts_file", places.ssh_config):  # mounted now, written soon
        file.touch()
    if state.mode == "plain":
        daemons = [(HEAD, daemon) for daemon in ("slurmctld", "slurmdbd", "mariadbd")] + [(n, "slurmd") for n in nodes]
        for (name, daemon), port in zip(daemons, free_ports(len(daemons)), strict=True):
            state.hosts[name].ports[daemon] = port
    theirs, ours = os.pipe()
    try:
        start_hosts(places, state, [HEAD], tie=theirs)
        if state.mode == "namespaces":
            network.make_bridge(state)
            names = "".join(f"{record.address} {name}\n" for name, record in state.hosts.items())
            (places / "hosts_file").write_text(f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{names}")
            write_ssh_files(places, state)
            _start_sshd(places, state, HEAD)
        for number in range(state.options.gpus):
            _make_device(places / f"gpus/nvidia{number}")
        if state.options.slurm:
            slurm.write_slurm_files(places, state)
            _start_slurm(places, state)
        since = start_nodes(places, state, nodes)
        wait_until_up(places, state, nodes, [HEAD, *nodes], since)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return ours


def start_nodes(places: Places, state: ClusterState, nodes: Sequence[str]) -> int:
    """Start nodes with their links and daemons. Returns the time before that, in seconds."""
    since = int(time.time())
    start_hosts(places, state, nodes)
    if state.mode == "namespaces":
        network.connect(state, nodes)
    for node in nodes:
        _start_sshd(places, state, node)
        if state.options.slurm:
            start_daemon(places, state, node, "slurmd", "-D", "-N", node, "-f", str(places.slurm_conf))
    return since


def wait_until_up(
    places: Places, state: ClusterState, nodes: Sequence[str], watched: Sequence[str], since: int
) -> None:
    """Until ssh servers answer, and Slurm would give these nodes jobs; their slurmd started at `since` or later."""
    if state.mode == "namespaces":

        def answer() -> bool:
            return all(_answers(state, node, "sshd", 22, b"SSH-") for node in nodes)

        _wait(places, answer, watched, "ssh servers do not start")
    if state.options.slurm:

        def are_usable() -> bool:
            return slurm.are_usable(places, state, nodes, since)

        _wait(places, are_usable, watched, "nodes of Slurm do not start", _USABLE_LIMIT_S)


def end_cluster(places: Places, state: ClusterState | None) -> None:
    """End all processes, also those that the state does not mention, and remove the uplink."""
    hosts = state.hosts.values() if state is not None else ()
    end_processes(places, keepers=[record.keeper for record in hosts if record.keeper is not None])
    if state is not None and state.uplink is not None:
        network.remove_uplink(state.uplink)


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback that are free now."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def _start_sshd(places: Places, state: ClusterState, host: str) -> None:
    if state.mode == "namespaces":
        start_daemon(places, state, host, "sshd", "-D", "-e", "-f", f"{places.directory}/ssh/{host}.sshd_config")


def _start_slurm(places: Places, state: ClusterState) -> None:
    """Daemons of the head, one after the other."""
    is_ready = {
        "munged": lambda: _is_socket(places / "munge/socket"),
        "mariadbd": lambda: _is_socket(places / "accounting/socket"),
        "slurmdbd": lambda: slurm.try_slurm(places, state, "sacctmgr", "-n", "show", "cluster").returncode == 0,
        # A slurmd that does not find the controller tries again a second later.
        "slurmctld": lambda: _answers(state, HEAD, "slurmctld", 6817),
    }
    for daemon, arguments in slurm.daemons_of_head(places, state):
        start_daemon(places, state, HEAD, daemon, *arguments)
        _wait(places, is_ready[daemon], [HEAD], f"{daemon} does not start")
        if daemon == "slurmdbd":
            slurm.register(places, state)


def _wait(
    places: Places,
    reached: Callable[[], bool],
    watched: Sequence[str],
    otherwise: str,
    limit_s: float = _START_LIMIT_S,
) -> None:
    """Wait, unless a daemon of the hosts `watched` ends: then the error has the last line of its log."""

    def reached_with_all_alive() -> bool:
        for host in watched:
            for line in ended_daemons(places, host):
                daemon, _, status = line.partition(" ")
                raise HostError(f"{daemon} of {host} ended with status {status}: {last_line(places, host, daemon)}")
        return reached()

    wait_until(reached_with_all_alive, limit_s, f"{otherwise}; logs are in {places.logs}")


def _answers(state: ClusterState, host: str, daemon: str, usual_port: int, greeting: bytes = b"") -> bool:
    address = (state.hosts[host].address, state.port(host, daemon, usual_port))
    with suppress(OSError), socket.create_connection(address, 1.0) as server:
        return server.recv(len(greeting)) == greeting if greeting else True
    return False


def _is_socket(path: Path) -> bool:
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)


def _make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # like /dev/null
    except PermissionError:
        path.touch(mode=0o600)
