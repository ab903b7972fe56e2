"""Faults of hosts in namespaces: what is really wrong on one of several nodes, and the checks that must say so.

Everything is done within the node's own namespaces (a mount over a file, a rule, a process), so that no other node
and nothing of this machine changes, and the node's end is the mend of all.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from glmforge_ops.dev import DevCluster
from glmforge_ops.dev.hosts import wait_until
from helpers.packages import install_or_skip
from helpers.planted_faults import PlantedFault

MASTER_PORT = 29_500
DISK_MB = 64
SHM = "8g"
_RESTART_S = 60.0


@dataclass(frozen=True)
class Node:
    """A host of a development cluster whose nodes share `shared` and each see `data` and `checkpoints`."""

    cluster: DevCluster
    name: str
    directory: Path

    @property
    def shared(self) -> Path:
        return self.directory / "shared"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def run(self, *command: str) -> str:
        return self.cluster.run(self.name, *command).stdout

    def shell(self, script: str) -> str:
        return self.run("sh", "-c", script)

    @contextmanager
    def over(self, path: Path, content: "str | bytes | Path") -> Iterator[None]:
        """Another file, or directory, at `path` for this node only."""
        source = content if isinstance(content, Path) else self.directory / f"{self.name}-{path.name}"
        if not isinstance(content, Path):
            source.write_bytes(content if isinstance(content, bytes) else content.encode())
            source.chmod(path.stat().st_mode & 0o777)
        self.run("mount", "--bind", str(source), str(path))
        try:
            yield
        finally:
            self.run("umount", str(path))


def furnish(node: Node) -> None:
    """A small disk, and shared storage that is mounted, as checks want to see it."""
    local = str(node.cluster.local_path)
    node.run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", local)
    for path in (node.shared, node.checkpoints):
        node.run("mount", "--bind", str(path), str(path))


@contextmanager
def down(node: Node) -> Iterator[None]:
    node.cluster.fail(node.name)
    try:
        yield
    finally:
        node.cluster.heal(node.name)
        furnish(node)


@contextmanager
def no_key(node: Node) -> Iterator[None]:
    with node.over(node.cluster.directory / "ssh/authorized_keys", ""):
        yield


@contextmanager
def other_host_key(node: Node) -> Iterator[None]:
    """As after a machine was put in its place: the server has another key."""
    new = node.directory / f"{node.name}-key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(new)], check=True)
    with node.over(node.cluster.places.host_key(node.name), new):
        _restart_sshd(node)
        try:
            yield
        finally:
            new.unlink()
            new.with_suffix(".pub").unlink()
    _restart_sshd(node)


def _restart_sshd(node: Node) -> None:
    log = node.cluster.places.log(node.name, "sshd")
    before = log.stat().st_size
    node.shell("kill -HUP $(cat /run/sshd.pid)")
    wait_until(lambda: b"Server listening on" in log.read_bytes()[before:], _RESTART_S, f"{node.name}: no ssh server")


@contextmanager
def no_key_of_its_own(node: Node) -> Iterator[None]:
    with node.over(node.cluster.directory / "ssh/key", "none\n"):
        yield


@contextmanager
def other_version(node: Node) -> Iterator[None]:
    """A fake description of the package, where this node alone sees it."""
    file = Path(str(metadata.distribution("glmforge").locate_file(""))) / _metadata_of("glmforge")
    text = file.read_text().replace(f"\nVersion: {metadata.version('glmforge')}\n", "\nVersion: 99.0\n", 1)
    with node.over(file, text):
        yield


def _metadata_of(package: str) -> str:
    listed = metadata.distribution(package).files or []
    return next(str(file) for file in listed if file.name == "METADATA")


@contextmanager
def full_disk(node: Node) -> Iterator[None]:
    node.shell(f"head -c {DISK_MB}M /dev/zero > {node.cluster.local_path}/full || true")
    try:
        yield
    finally:
        node.run("rm", f"{node.cluster.local_path}/full")


@contextmanager
def read_only(path: Callable[[Node], Path], node: Node) -> Iterator[None]:
    node.run("mount", "-o", "remount,bind,ro", str(path(node)))
    try:
        yield
    finally:
        node.run("mount", "-o", "remount,bind,rw", str(path(node)))


@contextmanager
def not_mounted(node: Node) -> Iterator[None]:
    node.run("umount", str(node.shared))
    try:
        yield
    finally:
        node.run("mount", "--bind", str(node.shared), str(node.shared))


@contextmanager
def directory_of_its_own(path: Callable[[Node], Path], node: Node) -> Iterator[None]:
    own = node.directory / f"{node.name}-own"
    own.mkdir(exist_ok=True)
    with node.over(path(node), own):
        yield


@contextmanager
def other_data(node: Node) -> Iterator[None]:
    file = node.data / "train.bin"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    with node.over(file, bytes(content)):
        yield


@contextmanager
def wrong_clock(node: Node) -> Iterator[None]:
    """For what its ssh server starts: a clock of the kernel is the whole machine's."""
    install_or_skip(("faketime",), ("faketime",))
    file = node.cluster.directory / f"ssh/{node.name}.sshd_config"
    right = file.read_text()
    variables = "LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1 FAKETIME=+3600"
    file.write_text(right.replace("SetEnv ", f"SetEnv {variables} "))
    _restart_sshd(node)
    try:
        yield
    finally:
        file.write_text(right)
        _restart_sshd(node)


@contextmanager
def closed_port(node: Node) -> Iterator[None]:
    """What the node sends to the master's port is dropped."""
    rule = f"add table inet closed; add chain inet closed out {{ type filter hook output priority 0; }}; " \
           f"add rule inet closed out tcp dport {MASTER_PORT} drop"  # fmt: skip
    node.run("nft", rule)
    try:
        yield
    finally:
        node.run("nft", "delete table inet closed")


@contextmanager
def taken_port(node: Node) -> Iterator[None]:
    """A rank of another job listens where the master should."""
    listens = f"import socket, sys; s = socket.create_server(('', {MASTER_PORT})); print('ready', flush=True)"
    # It ends with its input: a kill would reach only the process that has entered the node for it.
    command = node.cluster.command(node.name, "python3", "-c", f"{listens}; sys.stdin.read()")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            listener.communicate()


@contextmanager
def slow_link(node: Node) -> Iterator[None]:
    node.cluster.limit_rate(node.name, "100mbit")
    try:
        yield
    finally:
        node.cluster.limit_rate(node.name, None)


@contextmanager
def small_packets(node: Node) -> Iterator[None]:
    node.shell("ip link set eth0 mtu 1400")
    try:
        yield
    finally:
        node.shell("ip link set eth0 mtu 1500")


@contextmanager
def name_of_its_own_loopback(node: Node) -> Iterator[None]:
    """As Debian's installer writes /etc/hosts."""
    text = Path(node.cluster.directory / "hosts_file").read_text()
    address = node.cluster.address(node.name)
    with node.over(Path("/etc/hosts"), text.replace(f"{address} {node.name}\n", f"127.0.1.1 {node.name}\n")):
        yield


@contextmanager
def stale_rank(node: Node) -> Iterator[None]:
    pid = node.shell("RANK=0 WORLD_SIZE=2 setsid sleep 1000 >/dev/null 2>&1 & echo $!").strip()
    try:
        yield
    finally:
        node.run("kill", pid)


@contextmanager
def small_shm(node: Node) -> Iterator[None]:
    node.run("mount", "-o", "remount,size=1m", "/dev/shm")
    try:
        yield
    finally:
        node.run("mount", "-o", f"remount,size={SHM}", "/dev/shm")


@contextmanager
def harmful_login(node: Node) -> Iterator[None]:
    profile = Path("/etc/profile")
    with node.over(profile, profile.read_text() + "\nexport NCCL_THREAD_TREASHOLD=1 NCCL_TREE_THRESHOLD=0\n"):
        yield


def _fault(name: str, plant: Callable[[Node], object], *checks: str) -> "PlantedFault[Node]":
    return PlantedFault(name, plant, frozenset(checks))  # type: ignore[arg-type]  # a context manager


FAULTS = (
    _fault("a node that is down", down, "reach.ssh"),
    _fault("a node that refuses the key", no_key, "reach.ssh"),
    _fault("a host key that has changed", other_host_key, "reach.ssh"),
    _fault("no ssh key on a node", no_key_of_its_own, "ssh.nodes"),
    _fault("another version of the package", other_version, "versions.glmforge-equal"),
    _fault("a full disk", full_disk, "disk.space"),
    _fault("a read-only disk", partial(read_only, lambda node: node.cluster.local_path), "disk.local"),
    _fault("a read-only directory of checkpoints", partial(read_only, lambda node: node.checkpoints),
           "checkpoints.write"),
    _fault("shared storage that is not mounted", not_mounted, "shared.mounted"),
    _fault("another directory for shared storage", partial(directory_of_its_own, lambda node: node.shared),
           "shared.same"),
    _fault("data that are missing", partial(directory_of_its_own, lambda node: node.data), "data.there"),
    _fault("other data", other_data, "data.equal"),
    _fault("a clock that is wrong", wrong_clock, "clock.skew"),
    _fault("a closed port", closed_port, "network.port"),
    _fault("a link at 100 Mbit/s", slow_link, "network.bandwidth"),
    _fault("another MTU", small_packets, "network.mtu"),
    _fault("a name that is the node's own loopback", name_of_its_own_loopback, "network.names"),
    _fault("a process of an earlier job", stale_rank, "processes.stale"),
    _fault("a small /dev/shm", small_shm, "memory.shm"),
    _fault("a harmful variable in a login", harmful_login, "environment.variables"),
)  # fmt: skip
"""On any node; a taken port is the master's alone."""

TAKEN_PORT = _fault("a port that is taken", taken_port, "network.port")
