"""Hosts of a development cluster are brought up, at first and after a failure: all at the same time."""

import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from glmforge.errors import HostError
from glmforge.runtime.waiting import result_of
from glmforge_ops.dev import accounting, network
from glmforge_ops.dev.daemons import host_spec, hosts_file, make_munge_key
from glmforge_ops.dev.host_processes import (
    CLUSTER_MARK,
    StartedHost,
    end_host,
    end_marked,
    start_hosts,
    wait_until,
)
from glmforge_ops.dev.options import HEAD
from glmforge_ops.dev.places import Places, free_ports
from glmforge_ops.dev.slurm import answers, are_usable, run_slurm
from glmforge_ops.dev.slurm_files import write_slurm_files
from glmforge_ops.dev.sshd import make_keys, server_config, server_config_file, write_client_files
from glmforge_ops.dev.state import ClusterState, HostRecord

START_LIMIT_S = 60.0
_USABLE_LIMIT_S = 180.0
"""slurmctld asks a node that was down for more than a moment only now and then whether it is back."""


class BringUp:
    """Hosts on their way up: keepers that take orders from this process. `state` is changed, and written by others."""

    def __init__(self, places: Places, state: ClusterState) -> None:
        self.places, self.state = places, state
        self.started: dict[str, StartedHost] = {}
        self._slurmd_since: dict[str, int] = {}

    def everything(self) -> None:
        """The whole cluster. Whoever calls ends it if this raises, see `end_everything`."""
        places, options, nodes = self.places, self.state.options, self.state.options.node_names
        places.make()
        self._make_hosts_directories()
        with ThreadPoolExecutor(2) as pool:
            keys = pool.submit(make_keys, places, [HEAD, *nodes]) if self.state.ssh else None
            self._head_and_addresses()
            self._write_files()
            database = pool.submit(accounting.make_database, places, self.state) if options.accounting else None
            if options.slurm:
                self.start("munged", [HEAD])
            if keys is not None:
                result_of(keys)
                write_client_files(places, self.state)
                self._write_server_configs()
            self.nodes(nodes)
            self.start("sshd", [HEAD, *nodes])
            if database is not None:
                self._start_accounting(database)
        if options.slurm:
            self.wait(lambda: _is_socket(places.munge_socket), "munged does not come up")
            self.start("slurmctld", [HEAD])
            # A slurmd that does not find the controller asks again a second later.
            self.wait(lambda: self._listens(HEAD, "slurmctld", 6817), "slurmctld does not come up")
            self.start("slurmd", nodes)
        self.wait_until_up(nodes)
        if options.accounting:
            run_slurm(places, self.state, *accounting.user_registration())

    def nodes(self, names: Sequence[str]) -> None:
        """Nodes with their links, without daemons."""
        specs = {name: host_spec(self.places, self.state, name, tied=False) for name in names}
        head = self.state.hosts[HEAD].keeper
        assert head is not None
        namespaces = self.state.mode == "namespaces"
        started = start_hosts(self.places, specs, within=head if namespaces else None)
        self._note(started)
        if not namespaces:
            return
        network.connect(head, started, {name: self.state.hosts[name].address for name in names})
        for name, host in started.items():
            if (rate := self.state.hosts[name].rate) is not None:
                network.set_rate(head, name, host.keeper, rate)

    def again(self, name: str) -> None:
        """A node that has failed, with its daemons."""
        for daemon in ("sshd", "slurmd"):
            self.places.log(name, daemon).unlink(missing_ok=True)
        self.nodes([name])
        self.start("sshd", [name])
        self.start("slurmd", [name])

    def start(self, daemon: str, names: Sequence[str]) -> None:
        """Start a daemon on the hosts that have it."""
        for name in names:
            if daemon == "slurmd":
                self._slurmd_since[name] = int(time.time())
            if daemon in host_spec(self.places, self.state, name, tied=False)["daemons"]:
                self.started[name].tell(f"start {daemon}")

    def wait_until_up(self, names: Sequence[str]) -> None:
        """Until ssh servers answer, and Slurm says that these nodes can take jobs."""
        if self.state.ssh:
            self.wait(lambda: all(map(self._answers_ssh, names)), "the ssh servers do not come up")
        if self.state.options.slurm:
            since = {name: self._slurmd_since.get(name, 0) for name in names}
            usable = partial(are_usable, self.places, self.state, since)
            self.wait(usable, "Slurm's nodes do not come up", _USABLE_LIMIT_S)

    def wait(self, reached: Callable[[], bool], otherwise: str, limit_s: float = START_LIMIT_S) -> None:
        """Wait, unless a daemon ends: then the error says which, and its last words."""

        def reached_with_all_alive() -> bool:
            for name, host in self.started.items():
                for line in host.ended_daemons():
                    daemon, _, status = line.partition(" ")
                    last = last_line(self.places, name, daemon)
                    raise HostError(f"{daemon} of {name} has ended with status {status}: {last}")
            return reached()

        wait_until(reached_with_all_alive, limit_s, f"{otherwise} (logs in {self.places.logs})")

    def _make_hosts_directories(self) -> None:
        for name in (HEAD, *self.state.options.node_names):
            for directory in (self.places.host(name), self.places.disk(name), self.places.home(name)):
                directory.mkdir(mode=0o700)
            self.places.spool(name).mkdir(mode=0o700)
            self.state.hosts[name] = HostRecord(address="127.0.0.1")

    def _head_and_addresses(self) -> None:
        """The head, which ends with this process until it is told to stay; addresses or ports of all hosts."""
        state, nodes = self.state, self.state.options.node_names
        for file in (self.places / "hosts_file", self.places.ssh_config):  # mounted now, written soon
            file.touch()
        if state.mode == "plain":
            daemons = [(HEAD, daemon) for daemon in ("slurmctld", "slurmdbd", "mariadbd", "sshd")]
            daemons += [(name, daemon) for name in nodes for daemon in ("slurmd", "sshd")]
            for (name, daemon), port in zip(daemons, free_ports(len(daemons)), strict=True):
                state.hosts[name].ports[daemon] = port
        self._note(start_hosts(self.places, {HEAD: host_spec(self.places, state, HEAD, tied=True)}))
        if state.mode == "namespaces":
            net, state.uplink = network.make_bridge(self.started[HEAD].keeper)
            state.hosts[HEAD].address = network.head_address(net)
            for number, name in enumerate(nodes, 1):
                state.hosts[name].address = network.node_address(net, number)
                state.hosts[name].rate = state.options.link_rate

    def _write_files(self) -> None:
        places, state, options = self.places, self.state, self.state.options
        (places / "hosts_file").write_text(hosts_file(state))
        for number in range(options.gpus):
            device = places.gpus / f"nvidia{number}"
            try:
                os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null is
            except PermissionError:
                device.touch(mode=0o600)
        if options.slurm:
            make_munge_key(places)
            write_slurm_files(places, state)

    def _write_server_configs(self) -> None:
        for name in self.state.hosts:
            server_config_file(self.places, name).write_text(server_config(self.places, self.state, name))

    def _start_accounting(self, database: "Future[None]") -> None:
        result_of(database)
        self.wait(lambda: _is_socket(self.places.munge_socket), "munged does not come up")
        self.start("mariadbd", [HEAD])
        self.wait(lambda: _is_socket(self.places / "accounting/socket"), "the database does not come up")
        self.start("slurmdbd", [HEAD])
        self.wait(
            lambda: answers(self.places, self.state, "sacctmgr", "-n", "show", "cluster"), "slurmdbd does not answer"
        )
        for command in accounting.REGISTRATION:
            run_slurm(self.places, self.state, *command)

    def _note(self, started: dict[str, StartedHost]) -> None:
        self.started |= started
        for name, host in started.items():
            record = self.state.hosts[name]
            record.keeper, record.launcher, record.cut = host.keeper, host.launcher, False

    def _listens(self, name: str, daemon: str, port: int) -> bool:
        record = self.state.hosts[name]
        with suppress(OSError), socket.create_connection((record.address, record.ports.get(daemon, port)), 1.0):
            return True
        return False

    def _answers_ssh(self, name: str) -> bool:
        record = self.state.hosts[name]
        with suppress(OSError), socket.create_connection((record.address, record.ports.get("sshd", 22)), 1.0) as server:
            return server.recv(4) == b"SSH-"
        return False


def end_everything(places: Places, state: ClusterState) -> None:
    """End all hosts, the head first: with namespaces the others end with it."""
    for record in state.hosts.values():
        end_host(record, plain=state.mode == "plain")
    if state.mode == "plain":
        end_marked(f"{CLUSTER_MARK}={places.directory}")
    if state.uplink is not None:
        network.remove_uplink(state.uplink)


def last_line(places: Places, host: str, daemon: str) -> str:
    """Of the log of a daemon: the one that says what it ended for, or the last; Slurm has errors that mean nothing."""
    with suppress(OSError):
        lines = [line for line in places.log(host, daemon).read_text(errors="replace").splitlines() if line.strip()]
        fatal = [line for line in lines if "fatal" in line.lower()]
        if lines:
            return (fatal or lines)[-1].strip()
    return "it says nothing"


def _is_socket(path: os.PathLike[str]) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
    except FileNotFoundError:
        return False
