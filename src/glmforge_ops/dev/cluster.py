"""A development cluster: the object that commands and tests hold.

    with development_cluster(directory, DevOptions(nodes=8, slurm=False)) as cluster:
        cluster.run("node1", "hostname").stdout            # through the namespaces, without ssh
        subprocess.run([*cluster.ssh_command, "node1", "hostname"])
        cluster.fail("node2"), cluster.cut("node3"), cluster.heal("node2")

Such a cluster ends with the block, or with this process, even if it is killed: its head reads from a pipe of ours.
`DevCluster.start` and `detach` make one that outlives this process; `DevCluster.open` finds it.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from glmforge.errors import ConfigError, HostError
from glmforge.files import shown
from glmforge_ops.dev import network, services
from glmforge_ops.dev.bring_up import bring_up, end_cluster, start_nodes, wait_until_up
from glmforge_ops.dev.hosts import end_processes, ended_daemons, entering, environment_of
from glmforge_ops.dev.state import HEAD, LONGEST, ClusterState, DevOptions, HostRecord, Places, read_state

_RUN_LIMIT_S = 120.0


class DevCluster:
    """A cluster that has been started. Methods raise `HostError` for what is not possible."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._tie: int | None = None

    @classmethod
    def start(cls, directory: Path, options: DevOptions, *, say: Callable[[str], None] = lambda line: None) -> Self:
        """Start a cluster in `directory`, new or empty; it ends with this process until `detach` is called.

        `say` gets a line before each step that takes long. Installs missing Debian packages if this is root.
        """
        places = Places(directory)
        if options.slurm and len(str(directory)) > LONGEST:
            raise ConfigError(
                f"{directory}: too long for Slurm's sockets; set a --directory of at most {LONGEST} bytes"
            )
        with places.lock():
            if (old := read_state(places)) is not None and old.is_running:
                down = f"glmforge cluster dev down --directory {directory}"
                raise HostError(f"{directory}: a cluster is up there already; end it: {down}")
            end_cluster(places, old)
            places.clear()
            cluster = cls(ClusterState(places=places, options=options))
            try:
                cluster._tie = bring_up(cluster.state, say)
                cluster.state.write()
            except BaseException as error:
                end_cluster(places, cluster.state)
                cluster.detach()
                if isinstance(error, HostError) and (places / "log").exists():  # it names them
                    places.clear(keep_logs=True)
                else:
                    places.remove()
                raise
            return cluster

    @classmethod
    def open(cls, directory: Path) -> Self:
        """The cluster that runs in `directory`."""
        cluster = cls(ClusterState(places=Places(directory), options=DevOptions()))
        cluster.refresh()
        return cluster

    @classmethod
    def end(cls, directory: Path) -> None:
        """End the cluster in `directory` and remove its files, also of one that has crashed."""
        places = Places(directory)
        if not places.is_ours():
            raise HostError(f"{directory}: no development cluster there")
        with places.lock():
            state = None
            with suppress(HostError):  # invalid: processes are found without it
                state = read_state(places)
            end_cluster(places, state)
            places.remove()

    def detach(self) -> None:
        """Let the cluster outlive this process."""
        if self._tie is not None:
            with suppress(BrokenPipeError):
                os.write(self._tie, b"detach\n")
            os.close(self._tie)
            self._tie = None

    def down(self) -> None:
        """End everything, and remove every file."""
        self.end(self.directory)
        self.detach()

    @property
    def places(self) -> Places:
        return self.state.places

    @property
    def directory(self) -> Path:
        return self.places.directory

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.state.options.node_names

    @property
    def local_path(self) -> Path:
        """A node's local disk, as its processes see it; on this machine it is `disk`."""
        return self.places / "local"

    def disk(self, node: str) -> Path:
        return self.places.host(node) / "disk"

    def home(self, host: str) -> Path:
        """Home directory of a bare host, as this machine sees it."""
        return self.places.host(host) / "home"

    @property
    def ssh_command(self) -> list[str]:
        return ["ssh", "-F", str(self.places.ssh_config)]

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which Slurm's commands find this cluster."""
        return environment_of(self.places)

    def environment_on(self, host: str) -> dict[str, str]:
        """Variables of commands on a host."""
        return self.environment | services.session_environment(self.state, host)

    def address(self, host: str) -> str:
        return self._record(host).address

    def command(self, host: str, *arguments: str) -> list[str]:
        """Command line that runs a command on a host, in the current directory."""
        self.refresh()
        self._check_is_up(host)
        return entering(self.state, host, *arguments)

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
        command = self.command(host, *arguments)
        variables = self.environment_on(host) | dict(environment or {})
        done = subprocess.run(
            command, env=variables, input=stdin or "", capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode != 0:
            output = (done.stderr or done.stdout).strip()
            raise HostError(f"{host}: '{' '.join(arguments)}' failed with status {done.returncode}: {output}")
        return done

    def slurm(self, *arguments: str) -> str:
        """Output of a Slurm command on the head. Raises `HostError` if it fails."""
        return services.run_slurm(self.state, *arguments)

    def fail(self, node: str) -> None:
        """Power a node off: its link goes first, so that its processes cannot say goodbye."""
        with self._changing(node) as record:
            self._check_is_up(node)
            self._take_down(node, record)

    def cut(self, node: str) -> None:
        """Cut a node's link: the node runs on, and nobody is notified."""
        self._need_links()
        with self._changing(node) as record:
            self._check_is_up(node)
            network.set_link(self.state, node, up=False)
            record.cut = True

    def heal(self, node: str) -> None:
        """Bring a node back: restore its link, or start the host again if it or one of its daemons has ended.

        Returns when Slurm would give it jobs, and ssh works.
        """
        with self._changing(node) as record:
            since = 0
            if record.state == "cut":
                network.set_link(self.state, node, up=True)
                record.cut = False
            elif record.state == "failed" or self.ended_daemons(node):
                self._take_down(node, record)
                since = start_nodes(self.state, [node])
            wait_until_up(self.state, [node], [node], since)

    def limit_rate(self, node: str, rate: str | None) -> None:
        """Limit a node's link in both directions, to "10mbit", until it fails; None: unlimited."""
        self._need_links()
        with self._changing(node):
            self._check_is_up(node)
            network.set_rate(self.state, node, rate)

    def ended_daemons(self, host: str) -> list[str]:
        """`DAEMON STATUS` of those that have ended although their host is up."""
        return ended_daemons(self.places, host) if self._record(host).state != "failed" else []

    def slurm_states(self) -> dict[str, str]:
        """Node -> its state in Slurm; empty without Slurm."""
        facts = services.node_facts(self.state) if self.state.options.slurm else {}
        return {name: fact.get("State", "").lower() for name, fact in facts.items()}

    def refresh(self) -> ClusterState:
        """Read the state again, which other processes may have changed. Raises `HostError` if the cluster has ended."""
        state = read_state(self.places)
        if state is None or not state.is_running:
            raise HostError(f"{self.directory}: no development cluster is up there; start it: glmforge cluster dev up")
        self.state = state
        return state

    @contextmanager
    def _changing(self, node: str) -> Iterator[HostRecord]:
        """The record of a node, locked against other commands and written afterwards."""
        self._record(node)
        if node == HEAD:
            raise HostError(f"{HEAD}: the cluster cannot run without it; choose one of {_names(self.nodes)}")
        with self.places.lock():
            self.refresh()
            try:
                yield self._record(node)
            finally:
                self.state.write()

    def _take_down(self, node: str, record: HostRecord) -> None:
        if self.state.mode == "namespaces":
            network.disconnect(self.state, node)
        end_processes(self.places, node, [record.keeper] if record.keeper else [])
        record.keeper, record.cut = None, False
        for daemon in ("sshd", "slurmd"):  # what they say next is of the next start
            self.places.log(node, daemon).unlink(missing_ok=True)

    def _record(self, host: str) -> HostRecord:
        if host not in self.state.hosts:
            raise HostError(f"{shown(host)}: no such host in this cluster; choose one of {_names(self.state.hosts)}")
        return self.state.hosts[host]

    def _check_is_up(self, host: str) -> None:
        if self._record(host).state == "failed":
            raise HostError(f"{host}: has failed; bring it back: glmforge cluster dev heal {host}")

    def _need_links(self) -> None:
        if self.state.mode == "plain":
            raise HostError(f"{self.directory}: nodes of a plain cluster have no links; start one as root")


@contextmanager
def development_cluster(directory: Path, options: DevOptions | None = None) -> Iterator[DevCluster]:
    """A cluster in `directory`, new or empty, that ends with the block, or with this process, however it ends."""
    cluster = DevCluster.start(directory, options or DevOptions())
    try:
        yield cluster
    finally:
        if cluster.places.is_ours():  # else it has been ended already
            cluster.down()


def _names(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} ... {rest[-1]}" if len(rest) > 5 else ", ".join([first, *rest])
