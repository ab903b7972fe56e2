"""A development cluster: the object that commands and tests hold.

    with development_cluster(directory, DevOptions(nodes=8, slurm=False)) as cluster:
        cluster.run("node1", "hostname").stdout            # at once, through the namespaces
        subprocess.run([*cluster.ssh_command, "node1", "hostname"])
        cluster.fail("node2"), cluster.cut("node3"), cluster.heal("node2")

`up` starts one that outlives this process; `development_cluster` one that ends with the block, or with this process,
however it ends. `DevCluster.open` finds one that another process started.
"""

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.runtime.process import ProcessIdentity
from glmforge_ops.dev import network
from glmforge_ops.dev.bring_up import BringUp, end_everything
from glmforge_ops.dev.host_processes import (
    HOST_MARK,
    daemon_environment,
    end_host,
    end_marked,
    ended_file,
    entering,
    wait_until,
)
from glmforge_ops.dev.modes import choose_mode, plain_ssh_refusal
from glmforge_ops.dev.options import HEAD, DevOptions, check_rate
from glmforge_ops.dev.packages import CLOCK, ensure, ensure_hosts_file, needed
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.slurm import run_slurm
from glmforge_ops.dev.sshd import LISTENING, server_config, server_config_file, session_environment
from glmforge_ops.dev.state import ClusterState, HostRecord, read_state

Say = Callable[[str], None]

_RUN_LIMIT_S = 120.0
_RESTART_LIMIT_S = 30.0
_HAVE_BEEN = {"cut": "is cut", "failed": "has failed"}


def _say_nothing(line: str) -> None:
    pass


class DevCluster:
    """A cluster that has been started. Methods raise `HostError` for what cannot be done, in one line with the mend."""

    def __init__(self, places: Places, state: ClusterState) -> None:
        self.places, self.state = places, state
        self._bring_ups: list[BringUp] = []

    @classmethod
    def start(cls, directory: Path, options: DevOptions, *, say: Say = _say_nothing) -> Self:
        """Start a cluster in `directory`, new or empty; it ends with this process until `detach` is called.

        `say` is told what takes long. Installs Debian packages that are missing, if this is root.
        """
        places = Places(directory)
        if options.slurm:
            places.check_room_for_sockets()
        with places.lock():
            _make_room(places, say)
            mode, why_plain = choose_mode(places, options)
            wanted = needed(
                slurm=options.slurm, accounting=options.accounting, namespaces=mode == "namespaces", ssh=mode != "plain"
            )
            ensure(wanted, say)
            if mode == "namespaces":
                ensure_hosts_file(say)
            ssh = mode == "namespaces" or plain_ssh_refusal() is None
            state = ClusterState(options=_absolute(options), mode=mode, ssh=ssh, hosts={}, why_plain=why_plain)
            cluster = cls(places, state)
            bring_up = BringUp(places, cluster.state)
            cluster._bring_ups.append(bring_up)
            try:
                bring_up.everything()
                cluster.state.write(places)
            except BaseException as error:
                end_everything(places, cluster.state)
                places.remove(keep_logs=isinstance(error, HostError))  # it points at them
                raise
            return cluster

    @classmethod
    def open(cls, directory: Path) -> Self:
        """The cluster in `directory` that some process started."""
        places = Places(directory)
        state = read_state(places)
        if state is None or not state.is_running:
            raise _not_up(directory)
        return cls(places, state)

    @classmethod
    def end(cls, directory: Path, *, keep_logs: bool = False) -> Path | None:
        """End the cluster in `directory`, or remove what one has left; the directory of its logs if they are kept.

        Raises `HostError` if there is nothing of the kind.
        """
        places = Places(directory)
        if not places.is_ours():
            raise HostError(f"{directory}: no development cluster is there; nothing to end")
        with places.lock():
            state = read_state(places)
            if state is not None:
                end_everything(places, state)
            places.remove(keep_logs=keep_logs)
        return places.logs if keep_logs else None

    def detach(self) -> None:
        """Let the cluster outlive this process."""
        for bring_up in self._bring_ups:
            if HEAD in bring_up.started:
                bring_up.started[HEAD].tell("detach")

    def down(self, *, keep_logs: bool = False) -> None:
        """End everything, and remove every file, but for logs that are to be kept."""
        self.end(self.directory, keep_logs=keep_logs)

    @property
    def directory(self) -> Path:
        return self.places.directory

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.state.options.node_names

    @property
    def local_path(self) -> Path:
        """A node's local disk, as its processes see it; on this machine it lies at `disk`."""
        return self.places.local

    def disk(self, node: str) -> Path:
        """Where a node's local disk lies on this machine."""
        return self.places.disk(self._named(node))

    def home(self, host: str) -> Path:
        """Where the home directory of a bare host lies on this machine."""
        return self.places.home(self._named(host))

    @property
    def ssh_command(self) -> list[str]:
        """What reaches a host by its name, and takes no other key than its own."""
        return ["ssh", "-F", str(self.places.ssh_config)]

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to find this cluster, and its processes carry."""
        return daemon_environment(self.places)

    def environment_on(self, host: str) -> dict[str, str]:
        """Variables of commands on a host."""
        return self.environment | session_environment(self.places, self.state, self._named(host))

    def address(self, host: str) -> str:
        return self._record(host).address

    def command(self, host: str, *arguments: str) -> list[str]:
        """What runs a command on a host, in the current directory."""
        self.refresh()
        record = self._record(host)
        if record.state == "failed" or record.keeper is None:
            raise HostError(f"{host}: has failed; bring it back: glmforge cluster dev heal {host}")
        return list(arguments) if self.state.mode == "plain" else entering(record.keeper, *arguments)

    def run(
        self,
        host: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
        check: bool = True,
        timeout_s: float = _RUN_LIMIT_S,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on a host, without ssh. Raises `HostError` if it fails, unless `check` is False."""
        variables = self.environment_on(host) | dict(environment or {})
        done = subprocess.run(
            self.command(host, *arguments),
            env=variables,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise HostError(f"{host}: '{' '.join(arguments)}' ended with status {done.returncode}: {said}")
        return done

    def slurm(self, *arguments: str) -> str:
        """Output of a Slurm command on the head. Raises `HostError` if it fails."""
        return run_slurm(self.places, self.state, *arguments)

    def fail(self, node: str) -> None:
        """Take the power from a node: the link first, so that none of its processes says farewell."""
        with self._changing(node) as record:
            if record.state == "failed":
                raise HostError(f"{node}: has failed already; bring it back: glmforge cluster dev heal {node}")
            self._take_down(node)

    def cut(self, node: str) -> None:
        """Cut a node's link: it runs on, and nobody hears of it."""
        self._need_namespaces("links of their own")
        with self._changing(node) as record:
            if record.state != "up":
                raise HostError(f"{node}: {_HAVE_BEEN[record.state]} already; glmforge cluster dev heal {node}")
            network.set_link(self._head, node, up=False)
            record.cut = True

    def heal(self, node: str, *, wait: bool = True) -> None:
        """Bring a node back: its link, or the whole host with its daemons.

        Returns when Slurm would give it jobs, and ssh reaches it; without `wait` before that. A node on which a daemon
        has ended is started anew.
        """
        with self._changing(node) as record:
            if record.state == "cut":
                network.set_link(self._head, node, up=True)
                record.cut = False
            elif record.state == "up" and ended_file(self.places, node).exists():
                self._take_down(node)
            bring_up = BringUp(self.places, self.state)
            self._bring_ups.append(bring_up)
            if record.state == "failed":
                bring_up.again(node)
            if wait:
                bring_up.wait_until_up([node])

    def limit_rate(self, node: str, rate: str | None) -> None:
        """Limit a node's link in both directions, to "10mbit"; None: no limit."""
        self._need_namespaces("links of their own")
        if rate is not None:
            check_rate(rate)
        with self._changing(node) as record:
            if record.state == "failed" or record.keeper is None:
                raise HostError(f"{node}: has failed; bring it back: glmforge cluster dev heal {node}")
            network.set_rate(self._head, node, record.keeper, rate)
            record.rate = rate

    def set_clock(self, node: str, offset_s: float) -> None:
        """Let a node's clock be wrong by so many seconds; 0: right again.

        A clock is the machine's, so it is programs that are told another time (libfaketime, installed if this is
        root): those that the ssh server and `run` start from now on. Slurm's daemons keep the right time.
        """
        self._need_namespaces("clocks of their own")
        ensure(CLOCK, _say_nothing)
        with self._changing(node) as record:
            record.clock_offset_s = offset_s
            server_config_file(self.places, node).write_text(server_config(self.places, self.state, node))
            if record.state != "failed":
                log = self.places.log(node, "sshd")
                before = log.stat().st_size
                self.run(node, "sh", "-c", "kill -HUP $(cat /run/sshd.pid)")
                wait_until(lambda: LISTENING in log.read_bytes()[before:], _RESTART_LIMIT_S, f"{node}: no ssh server")

    def ended_daemons(self, host: str) -> list[str]:
        """`DAEMON STATUS` of those that are no more although their host is up."""
        file = ended_file(self.places, self._named(host))
        return file.read_text().splitlines() if file.exists() and self.state.hosts[host].state != "failed" else []

    def refresh(self) -> ClusterState:
        """The state as it is now, after other processes' doing. Raises `HostError` if the cluster is no more."""
        state = read_state(self.places)
        if state is None or not state.is_running:
            raise _not_up(self.directory)
        self.state = state
        return state

    @property
    def _head(self) -> ProcessIdentity:
        keeper = self.state.hosts[HEAD].keeper
        assert keeper is not None
        return keeper

    @contextmanager
    def _changing(self, node: str) -> Iterator[HostRecord]:
        """The record of a node, which nobody else changes within the block, and which is written after it."""
        if node == HEAD:
            raise HostError(f"{HEAD}: without it there is no cluster; name one of {self._names(self.nodes)}")
        with self.places.lock():
            self.refresh()
            record = self._record(node)
            try:
                yield record
            finally:
                self.state.write(self.places)

    def _take_down(self, node: str) -> None:
        plain = self.state.mode == "plain"
        if not plain:
            network.disconnect(self._head, node)
        record = self.state.hosts[node]
        end_host(record, plain=plain)
        if plain:
            end_marked(f"{HOST_MARK}={node}@{self.directory}")
        record.keeper, record.launcher, record.cut = None, None, False

    def _named(self, host: str) -> str:
        self._record(host)
        return host

    def _record(self, host: str) -> HostRecord:
        if host not in self.state.hosts:
            raise HostError(f"{shown(host)}: is no host of this cluster; name one of {self._names(self.state.hosts)}")
        return self.state.hosts[host]

    @staticmethod
    def _names(names: Iterable[str]) -> str:
        first, *rest = names
        return first if not rest else f"{first} ... {rest[-1]}" if len(rest) > 5 else ", ".join([first, *rest])

    def _need_namespaces(self, what: str) -> None:
        if self.state.mode == "plain":
            raise HostError(
                f"{self.directory}: its nodes have no {what}, because it is a plain cluster; start it as root"
            )


@contextmanager
def development_cluster(
    directory: Path, options: DevOptions | None = None, *, say: Say = _say_nothing
) -> Iterator[DevCluster]:
    """A cluster in `directory`, new or empty, that ends with the block, or with this process, however it ends."""
    cluster = DevCluster.start(directory, options or DevOptions(), say=say)
    try:
        yield cluster
    finally:
        if cluster.places.is_ours():  # else somebody has ended it already
            cluster.down()


def _make_room(places: Places, say: Say) -> None:
    """Refuse a cluster that is up; remove what one has left that ended with its machine or was killed."""
    if not places.is_ours():
        return
    state = read_state(places)
    if state is not None and state.is_running:
        raise HostError(f"{places.directory}: a cluster is up there already; end it: glmforge cluster dev down")
    say(f"removing what an earlier cluster left in {places.directory}")
    if state is not None:
        end_everything(places, state)
    places.remove()


def _absolute(options: DevOptions) -> DevOptions:
    programs = {name: getattr(options, name) for name in ("prolog", "health_check")}
    return replace(options, **{name: program and program.absolute() for name, program in programs.items()})


def _not_up(directory: Path) -> HostError:
    return HostError(f"{directory}: no development cluster is up there; start one: glmforge cluster dev up")
