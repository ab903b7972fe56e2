"""What setup writes: the script that prepares a node, and the files of the cluster on this machine."""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from glmforge.errors import HostError
from glmforge.files import escaped, kind_of, read_text, shown
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.environment.script import Wanted as EnvironmentWanted
from glmforge_ops.environment.script import as_script
from glmforge_ops.render import safe_environment
from glmforge_ops.setup.facts import NETWORK_TYPES
from glmforge_ops.setup.known_hosts import Place
from glmforge_ops.setup.wanted import Wanted

JOB_SCRIPTS = {"slurm": "job.sbatch", "mpi": "job.pbs", "manual": "job.sh"}
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class File:
    """A file that is to be there; `before` is what is in it now, None if it is not there."""

    path: Path
    mode: int
    text: str
    before: str | None

    @classmethod
    def of(cls, path: Path, mode: int, text: str) -> "File":
        """Raises `HostError` if something else is in its place."""
        there = kind_of(path, error=HostError) is not None
        return cls(path, mode, text, read_text(path, error=HostError, max_bytes=_MAX_BYTES) if there else None)

    @property
    def is_written(self) -> bool:
        return self.before == self.text

    @property
    def replaces(self) -> bool:
        """Whether something that is in it would be lost."""
        return self.before is not None and not self.text.startswith(self.before)

    def describe(self) -> list[str]:
        """The change as a person reads it: the whole file, or what differs."""
        head = f"{'write' if self.before is None else 'change'} {shown(self.path)} ({self.mode:04o})"
        diff = difflib.unified_diff((self.before or "").splitlines(), self.text.splitlines(), lineterm="", n=1)
        return [head, *(f"  {escaped(line)}" for line in list(diff)[2:] if not line.startswith("@@"))]

    def write(self) -> None:
        """Whole or not at all. Raises `HostError`."""
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(self.text)
                os.fchmod(file.fileno(), self.mode)
            part.replace(self.path)
        except OSError as error:
            raise HostError(f"{shown(self.path)}: cannot be written: {error.strerror}; give another --out") from None


def node_script(wanted: Wanted, host: str, key: str) -> str:
    """What prepares `host`; `key` is the line that lets the cluster's key in."""
    return render("node.sh", wanted=wanted, key="" if host in LOCAL else key, network_types=NETWORK_TYPES)


def ssh_files(wanted: Wanted, places: Sequence[Place], known_hosts: str) -> list[File]:
    """The configuration and the host keys by which nodes are reached from now on."""
    if all(name in LOCAL for name in wanted.names):
        return []
    texts = {"known_hosts": known_hosts, "config": render("ssh_config", wanted=wanted, places=places)}
    return [File.of(wanted.ssh_directory / name, 0o600, text) for name, text in texts.items() if text]


def job_files(wanted: Wanted) -> list[File]:
    """Hostfile, environment (see `glmforge cluster env`), launch and job scripts."""
    cluster, job = wanted.cluster, JOB_SCRIPTS[wanted.kind]
    environment = EnvironmentWanted(
        network=cluster.network or "auto",
        interfaces=(cluster.interface,) if cluster.interface else (),
        devices=tuple(cluster.infiniband) if cluster.network in ("infiniband", "roce") else (),
    )
    texts = {
        "env.sh": as_script(environment),
        "on_node.sh": render("on_node.sh", wanted=wanted),
        "launch.sh": render(f"launch_{wanted.kind}.sh", wanted=wanted),
        job: render(job, wanted=wanted),
    }
    lines = "".join(f"{line.name} slots={line.slots}\n" for line in wanted.machines)
    scripts = [File.of(wanted.out / name, 0o755, text) for name, text in texts.items()]
    return [File.of(wanted.out / "hostfile", 0o644, lines), *scripts]


def render(template: str, **values: Any) -> str:
    """The text of `template`, a file name without .jinja."""
    return _environment().get_template(f"{template}.jinja").render(values)


@cache
def _environment() -> jinja2.Environment:
    return safe_environment(jinja2.PackageLoader("glmforge_ops", "setup/templates"))
