"""What Prometheus is to scrape, as its file discovery (`file_sd_configs`) reads it.

Runs and corpus runs whose exporter listens leave a file `exporter/rank-NNNNN.json` in their directory; each becomes a
target with the labels `job`, `run`, `stage` (but for a corpus run) and `rank`. Nodes of this user's Slurm jobs become
targets of the node exporter and of the exporter of GPUs there.

Of two files that name one address the later one is right: the earlier process died, and another run was given its port.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.errors import HostError
from glmforge.files import read_json, shown
from glmforge.observe.metric_table import label_text
from glmforge.observe.run import write_text
from glmforge.runtime.hostfile import expand_hosts, split_names
from glmforge_ops.hosts.machines import ask_slurm

NODE_PORT, GPU_PORT = 9100, 9400
"""Of node exporter; of dcgm-exporter, and `glmforge monitor gpu`."""

JOBS = ("glmforge", "corpus", "serving")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})|[0-9A-Fa-f:]{2,45}")
_MOST_BYTES = 1 << 16
_MOST_CHARACTERS = 200
"""Of a label."""


@dataclass(frozen=True)
class Target:
    """One address, and the labels of all its series. `started` is when its process did, ISO 8601."""

    address: str
    labels: tuple[tuple[str, str], ...]
    started: str = ""


def targets_of_runs(directories: Iterable[Path]) -> tuple[list[Target], list[str]]:
    """Targets of runs in these directories, or one level below, and what is wrong with the files of others.

    Raises `HostError` for what is not a directory.
    """
    newest: dict[str, Target] = {}
    problems = []
    for path in _files(directories):
        try:
            target = _read(path)
        except FileNotFoundError:  # its run ended meanwhile
            continue
        except HostError as error:
            problems.append(str(error))
            continue
        if target.address not in newest or newest[target.address].started < target.started:
            newest[target.address] = target
    return sorted(newest.values(), key=lambda target: (target.labels, target.address)), problems


def targets_of_slurm(node_port: int = NODE_PORT, gpu_port: int = GPU_PORT) -> list[Target]:
    """Exporters of nodes and of GPUs, on the nodes of this user's running jobs. Raises `HostError`."""
    printed = ask_slurm("squeue", "--noheader", "--me", "--states=RUNNING", "--format=%N")
    names = [name for line in printed.splitlines() for name in split_names(line)]
    hosts = sorted(set(expand_hosts(names, "squeue"))) if names else []
    ports = {"node": node_port, "gpu": gpu_port}
    return [Target(f"{host}:{port}", (("job", job),)) for job, port in ports.items() for host in hosts]


def file_sd(targets: Sequence[Target]) -> str:
    """The text of a file for `file_sd_configs`."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for target in targets:
        groups.setdefault(target.labels, []).append(target.address)
    return json.dumps([{"targets": found, "labels": dict(labels)} for labels, found in groups.items()], indent=1) + "\n"


def write_if_changed(path: Path, text: str) -> bool:
    """Write a file that Prometheus may be reading; whether it is another text than before."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    write_text(path, text)
    return True


def _files(directories: Iterable[Path]) -> Iterator[Path]:
    for directory in directories:
        if not directory.is_dir():
            raise HostError(f"{shown(directory)}: no such directory; name runs, or a directory that holds runs")
        for pattern in ("exporter/rank-*.json", "*/exporter/rank-*.json"):
            yield from sorted(directory.glob(pattern))


def _read(path: Path) -> Target:
    try:
        path.lstat()
    except OSError:
        raise FileNotFoundError(path) from None
    found: dict[str, Any] = read_json(path, dict, error=HostError, max_bytes=_MOST_BYTES)
    host, port, started = found.get("host"), found.get("port"), found.get("started")
    job, rank = found.get("job", JOBS[0]), path.stem.removeprefix("rank-")
    run, stage = found.get("run"), found.get("stage")
    for field, is_good in (
        ("host", isinstance(host, str) and _HOST.fullmatch(host) is not None),
        ("port", isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536),
        ("started", isinstance(started, str)),
        ("job", job in JOBS),
        ("run", isinstance(run, str) and len(run) <= _MOST_CHARACTERS),
        ("stage", isinstance(stage, str) and len(stage) <= _MOST_CHARACTERS),
        ("rank", re.fullmatch(r"[0-9]{5,9}", rank) is not None),
    ):
        if not is_good:
            raise HostError(f"{shown(path)}: invalid {field}; delete the file if no run writes it")
    address = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    labels = {"job": job, "run": label_text(run), "stage": label_text(stage), "rank": str(int(rank))}
    if job == "corpus":  # its series have stages of their own
        del labels["stage"]
    return Target(address, tuple(labels.items()), str(started))
