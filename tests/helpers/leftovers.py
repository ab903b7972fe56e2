"""What a development cluster has in the system: all of it has to be gone when the cluster is.

Others start and end processes at the same time, so nothing is compared that could be theirs: processes and mounts that
name the cluster's directory, the namespaces that its processes were in, and the interface to it.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glmforge_ops.dev import DevCluster

_KINDS = ("net", "uts", "ipc", "mnt", "pid")


@dataclass(frozen=True)
class Belongings:
    """Taken while a cluster is up."""

    directory: Path
    namespaces: frozenset[str]
    interface: str | None

    def left(self) -> list[str]:
        """What of it is there now, in words."""
        found = [f"process {pid}: {words}" for pid, words in processes_of(self.directory)]
        found += [f"mount seen by {pid}: {line}" for pid, line in mounts_of(self.directory)]
        found += sorted(f"namespace {name}" for name in self.namespaces & frozenset(_all_namespaces()))
        if self.interface is not None and Path("/sys/class/net", self.interface).exists():
            found.append(f"interface {self.interface}")
        if self.directory.exists():
            found += [str(path) for path in (self.directory, *self.directory.rglob("*"))]
        return found


def belongings_of(cluster: DevCluster) -> Belongings:
    """All that a cluster has now; there must be some of everything, or the comparison would say nothing."""
    own = {name for pid, _ in processes_of(cluster.directory) for name in _namespaces_of(pid)}
    ours = frozenset(own) - frozenset(_namespaces_of("self"))
    assert processes_of(cluster.directory)
    if cluster.state.mode == "namespaces":
        assert len(ours) >= len(_KINDS) * (1 + len(cluster.nodes))
        assert mounts_of(cluster.directory)
        assert cluster.state.uplink is not None
    return Belongings(cluster.directory, ours, cluster.state.uplink)


def processes_of(directory: Path) -> list[tuple[str, str]]:
    """Processes, zombies too, that carry the directory in their environment or command."""
    found = []
    for process in _processes():
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            mark = f"GLMFORGE_DEV_CLUSTER={directory}\0".encode()
            if mark in (process / "environ").read_bytes() or f"{directory}/".encode() in command:
                found.append((process.name, command.replace(b"\0", b" ").decode(errors="replace")))
    return found


def mounts_of(directory: Path) -> list[tuple[str, str]]:
    """Mounts in any namespace that name the directory."""
    seen, found = set[str](), []
    for process in _processes():
        with suppress(OSError):
            namespace = str((process / "ns/mnt").readlink())
            if namespace not in seen:
                seen.add(namespace)
                lines = (process / "mountinfo").read_text().splitlines()
                found += [(process.name, line) for line in lines if f"{directory}/" in line]
    return found


def _all_namespaces() -> Iterator[str]:
    for process in _processes():
        yield from _namespaces_of(process.name)


def _namespaces_of(pid: str) -> list[str]:
    with suppress(OSError):
        return [str(Path("/proc", pid, "ns", kind).readlink()) for kind in _KINDS]
    return []


def _processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdecimal())


def interfaces() -> set[str]:
    """This machine's, but those of other clusters."""
    return {path.name for path in Path("/sys/class/net").iterdir() if not path.name.startswith("glmforge")}
