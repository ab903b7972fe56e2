"""What setup writes: the script that prepares a node, and the files of the cluster on this machine."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import jinja2

from glmforge.config.cluster import ClusterConfig
from glmforge.data.files import write_whole
from glmforge.errors import HostError
from glmforge.files import absolute, escaped, kind_of, read_text, shown
from glmforge.runtime.hostfile import LOCAL, HostLine
from glmforge_ops.environment.script import Wanted as EnvironmentWanted
from glmforge_ops.environment.script import as_script
from glmforge_ops.render import safe_environment
from glmforge_ops.setup.facts import NETWORK_TYPES
from glmforge_ops.setup.known_hosts import Place

Kind = Literal["slurm", "mpi", "manual"]
JOB_SCRIPTS = {"slurm": "job.sbatch", "mpi": "job.pbs", "manual": "job.sh"}
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Wanted:
    """A checked request; make it with `of`. `out` is absolute: the directory of the cluster on this machine."""

    kind: Kind
    cluster: ClusterConfig
    names: list[str]
    out: Path

    @classmethod
    def of(cls, kind: Kind, cluster: ClusterConfig, machines: list[HostLine], out: Path, nodes: int | None) -> Self:
        """Raises `HostError`. `nodes`: how many there must be."""
        wanted = cls(kind, cluster, [line.name for line in machines], absolute(out))
        if nodes is not None and nodes != len(machines):
            raise HostError(f"--nodes {nodes}, but there are {len(machines)} nodes; correct --nodes or the hosts")
        for line in machines:
            if line.slots not in (None, wanted.slots):
                raise HostError(
                    f"{line.name} has slots={line.slots}, but --gpus-per-node is {wanted.slots}; make them equal, or "
                    "set up such nodes as a cluster of their own"
                )
        text = str(wanted.out)
        if not text.isprintable() or set(text) & {'"', "%"} or (kind == "mpi" and " " in text):
            raise HostError(
                f"--out {shown(text)}: ssh's configuration cannot hold \" and %, nor mpirun spaces; choose another path"
            )
        if kind_of(wanted.out, error=HostError) not in (None, "directory"):
            raise HostError(f"--out {shown(text)}: is not a directory; choose another path")
        return wanted

    @property
    def slots(self) -> int:
        """Ranks on each machine."""
        return self.cluster.gpus_per_node or 1

    @property
    def master_addr(self) -> str:
        return self.cluster.master_addr or _bare(self.names[0])

    @property
    def master_node(self) -> str:
        """The machine with that address, as Slurm calls it."""
        names = [_bare(name) for name in self.names]
        return self.master_addr if self.master_addr in names else names[0]

    @property
    def ssh_directory(self) -> Path:
        return self.out / "ssh"


def _bare(name: str) -> str:
    """A host's name without the account."""
    return name.rpartition("@")[2]


@dataclass(frozen=True)
class File:
    """A file and the text it is to have; `before` is what it has now, None if it does not exist."""

    path: Path
    mode: int
    text: str
    before: str | None

    @classmethod
    def of(cls, path: Path, mode: int, text: str) -> Self:
        """Raises `HostError` if something else is in its place."""
        exists = kind_of(path, error=HostError) is not None
        return cls(path, mode, text, read_text(path, error=HostError, max_bytes=_MAX_BYTES) if exists else None)

    @property
    def replaces(self) -> bool:
        """Whether some of its content would be lost."""
        return self.before is not None and not self.text.startswith(self.before)

    def describe(self) -> list[str]:
        """The change as a person reads it: the whole file, or what differs."""
        head = f"{'write' if self.before is None else 'change'} {shown(self.path)} ({self.mode:04o})"
        diff = difflib.unified_diff((self.before or "").splitlines(), self.text.splitlines(), lineterm="", n=1)
        return [head, *(f"  {escaped(line)}" for line in list(diff)[2:] if not line.startswith("@@"))]

    def write(self) -> None:
        """Raises `DataError`."""
        write_whole(self.path, self.text.encode())
        self.path.chmod(self.mode)


def node_script(wanted: Wanted, host: str, key: str) -> str:
    """What prepares `host`; `key` is the line that lets the cluster's key in."""
    return render("node.sh", wanted=wanted, key="" if host in LOCAL else key, network_types=NETWORK_TYPES)


def files_here(wanted: Wanted, places: Sequence[Place], known_hosts: str) -> list[File]:
    """Files that are missing or differ: host keys and configuration of ssh, hostfile, environment, launch scripts."""
    cluster, job = wanted.cluster, JOB_SCRIPTS[wanted.kind]
    files: dict[str, tuple[int, str]] = {}
    if not set(wanted.names) <= set(LOCAL):
        files["ssh/known_hosts"] = (0o600, known_hosts)
        files["ssh/config"] = (0o600, render("ssh_config", wanted=wanted, places=places))
    environment = EnvironmentWanted(
        network=cluster.network or "auto",
        interfaces=(cluster.interface,) if cluster.interface else (),
        devices=tuple(cluster.infiniband) if cluster.network in ("infiniband", "roce") else (),
    )
    files["hostfile"] = (0o644, "".join(f"{name} slots={wanted.slots}\n" for name in wanted.names))
    files["env.sh"] = (0o755, as_script(environment))
    for name, template in {"on_node.sh": "on_node.sh", "launch.sh": f"launch_{wanted.kind}.sh", job: job}.items():
        files[name] = (0o755, render(template, wanted=wanted))
    found = [File.of(wanted.out / name, mode, text) for name, (mode, text) in files.items() if text]
    return [file for file in found if file.before != file.text]


def render(template: str, **values: Any) -> str:
    """The text of `template`, a file name without .jinja."""
    return _environment().get_template(f"{template}.jinja").render(values)


@cache
def _environment() -> jinja2.Environment:
    return safe_environment(jinja2.PackageLoader("glmforge_ops", "setup/templates"))
