"""The servers of the monitoring stack: which are installed, and how to get those that are not."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from glmforge.errors import HostError


class Program(NamedTuple):
    """A server; `commands` are its names, Debian's last. `package` is Debian's; empty: it has none."""

    name: str
    commands: tuple[str, ...]
    package: str
    port: int
    needed: bool
    elsewhere: str = ""


PROGRAMS = (
    Program("prometheus", ("prometheus",), "prometheus", 9090, True),
    Program("alertmanager", ("alertmanager", "prometheus-alertmanager"), "prometheus-alertmanager", 9093, False),
    Program("node", ("node_exporter", "prometheus-node-exporter"), "prometheus-node-exporter", 9100, False),
    Program("grafana", ("grafana",), "", 3000, False, "https://grafana.com/grafana/download, or --containers"),
)


def find(program: Program) -> str | None:
    """The path of an installed server."""
    return next((path for command in program.commands if (path := shutil.which(command))), None)


def missing() -> list[Program]:
    return [program for program in PROGRAMS if find(program) is None]


def how_to_get(programs: Sequence[Program]) -> str:
    """One line."""
    packages = [program.package for program in programs if program.package]
    ways = [f"apt-get install {' '.join(packages)} (or pass --install)"] if packages else []
    ways += [f"{program.name}: {program.elsewhere}" for program in programs if program.elsewhere]
    return "; ".join(ways)


def install(programs: Sequence[Program]) -> None:
    """Install Debian's packages, without starting their services. The user must have agreed. Raises `HostError`."""
    packages = [program.package for program in programs if program.package]
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise HostError(f"no apt-get here: install {', '.join(packages)} as this system does, or pass --containers")
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        command = ["sudo", "-n", *command]
    # RUNLEVEL: their services, which listen on all addresses, are not started.
    done = subprocess.run(
        command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise HostError(f"{' '.join(command)}: {last or f'status {done.returncode}'}; run it as an administrator")
