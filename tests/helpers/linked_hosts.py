"""Two hosts on this machine with a slow link between them: what a job over two nodes meets, without the nodes.

    with linked_hosts(directory) as (first, second):
        run_ranks(function, 4, hosts=(first, second))      # two ranks on each, see helpers.distributed
        first.link_bytes                                    # what has gone over the link so far
        first.cut_link()

Each host is a set of namespaces: its own network, with one interface besides the loopback, whose other end is the other
host's; its own host name and /etc/hosts; its own mounts, with its own disk at the same path on both, and its own
/dev/shm. Processes enter it (`enter`), or are started in it (`command`).

The namespaces have no names in the system. A process per host keeps them, which ends with the one that made it, and
with it they end: nothing is left behind, and test runs beside each other do not meet. No network leads out of them.
Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN), util-linux and iproute2.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.packages import install_or_skip

INTERFACE = "eth0"
NAMESPACES = ("net", "uts", "mnt")
OVERHEAD = 1.07
"""Bytes on the link for each byte of long messages, at most: 66 bytes of headers for each 1,448, and as many again to
acknowledge every second such segment of what comes the other way."""

# A burst of 64 KiB is more than what the kernel sends at once; what waits longer than the latency is dropped.
_SLOW = "root tbf rate {rate} burst 64kb latency 400ms"
_KEEPER = """set -e
hostname {name}
mount --bind {hosts} /etc/hosts
mount --bind {disk} {disk_seen}
mount -t tmpfs tmpfs /dev/shm
echo ready
exec sleep infinity
"""

_SSH = """#!/bin/sh
while :; do
  case $1 in -o) shift 2 ;; --|-a|-x|-T) shift ;; *) break ;; esac
done
case $1 in
{cases}
*) echo "no host $1" >&2; exit 255 ;;
esac
shift
exec nsenter --target=$keeper --net --uts --mount sh -c "$*"
"""


class LinkBytes(NamedTuple):
    """Bytes of Ethernet frames that one host has sent to the other, and received."""

    sent: int
    received: int


@dataclass(frozen=True)
class LinkedHost:
    """One of two hosts.

    Attributes:
        name: its host name, by which the other knows it.
        address: on the link.
        keeper: id of the process that keeps its namespaces.
        disk: where its disk really is; processes of the host see it at `disk_seen`.
    """

    name: str
    address: str
    keeper: int
    disk: Path
    disk_seen: Path

    def enter(self) -> None:
        """Make the calling process, which must have one thread, one of this host; it stays in its directory."""
        directory = Path.cwd()
        setns = ctypes.CDLL(None, use_errno=True).setns  # os.setns comes with Python 3.12
        for namespace in NAMESPACES:
            with Path(f"/proc/{self.keeper}/ns/{namespace}").open() as file:
                if setns(file.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), f"entering the {namespace} namespace of {self.name}")
        os.chdir(directory)

    def command(self, *arguments: str) -> list[str]:
        """What runs the command `arguments` on this host."""
        return ["nsenter", f"--target={self.keeper}", "--net", "--uts", "--mount", *arguments]

    @property
    def link_bytes(self) -> LinkBytes:
        return read_link_bytes(self.keeper)

    def cut_link(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        self._set_link("down")

    def mend_link(self) -> None:
        self._set_link("up")

    def _set_link(self, state: str) -> None:
        _run(*self.command("ip", "link", "set", INTERFACE, state))


def read_link_bytes(process: int | str = "self") -> LinkBytes:
    """What has gone over the link of the host that a process is on."""
    for line in Path(f"/proc/{process}/net/dev").read_text().splitlines():
        interface, _, counts = line.partition(":")
        if interface.strip() == INTERFACE:
            fields = counts.split()
            return LinkBytes(sent=int(fields[8]), received=int(fields[0]))
    raise AssertionError(f"process {process} is on no host with a link")


def skip_unless_possible() -> None:
    """Skip the test, saying what is missing, where there can be no such hosts."""
    install_or_skip(("unshare", "nsenter", "setpriv", "ip", "tc"), ("util-linux", "iproute2"))
    attempt = ["unshare", "--net", "--uts", "--mount", "sh", "-c", "ip link add one type veth peer name two"]
    done = subprocess.run(attempt, check=False, capture_output=True, text=True)
    if os.geteuid() != 0 or done.returncode:
        pytest.skip(f"needs root and the right to make network namespaces: {done.stderr.strip()}")


@contextmanager
def linked_hosts(directory: Path, rate: str = "100mbit") -> Iterator[tuple[LinkedHost, LinkedHost]]:
    """Two hosts, whose disks and logs lie in `directory`, with `rate` (as `tc` writes it) in each direction."""
    skip_unless_possible()
    names, addresses = ("host0", "host1"), ("10.0.0.1", "10.0.0.2")
    lines = [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
    (directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    (directory / "disk").mkdir()
    with ExitStack() as keepers:
        first, second = (
            keepers.enter_context(_keep_host(directory, name, address))
            for name, address in zip(names, addresses, strict=True)
        )
        _connect(first, second, rate)
        yield first, second


@contextmanager
def _keep_host(directory: Path, name: str, address: str) -> Iterator[LinkedHost]:
    disk, disk_seen = directory / f"{name}.disk", directory / "disk"
    disk.mkdir()
    script = _KEEPER.format(name=name, hosts=directory / "hosts", disk=disk, disk_seen=disk_seen)
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--mount", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as keeper:
        try:
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == "ready\n", f"{name} does not come up"
            yield LinkedHost(name, address, keeper.pid, disk, disk_seen)
        finally:
            keeper.kill()


def _connect(first: LinkedHost, second: LinkedHost, rate: str) -> None:
    # Made in the first host, so that this machine's own network never has such an interface.
    peer = ["type", "veth", "peer", "name", INTERFACE, "netns", str(second.keeper)]
    _run(*first.command("ip", "link", "add", INTERFACE, *peer))
    for host in (first, second):
        _run(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", INTERFACE))
        _run(*host.command("tc", "qdisc", "add", "dev", INTERFACE, *_SLOW.format(rate=rate).split()))
        for interface in ("lo", INTERFACE):
            _run(*host.command("ip", "link", "set", interface, "up"))


def write_ssh(file: Path, hosts: Sequence[LinkedHost]) -> Path:
    """A program to be called as ssh is, by glmforge and by rsync, that runs its command on the host it names."""
    cases = "\n".join(f"{host.name}) keeper={host.keeper} ;;" for host in hosts)
    file.write_text(_SSH.format(cases=cases))
    file.chmod(0o755)
    return file


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
