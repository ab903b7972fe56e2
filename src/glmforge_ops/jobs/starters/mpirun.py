"""Ranks by Open MPI's mpirun: over ssh to the nodes of a hostfile, or by Slurm's srun within a job.

What mpirun would do by itself, and is told not to: end everything when one rank has failed (the attempt's grace is the
starter's), bind each rank to one core, go on from node to node with ssh (which would need keys between them), and pass
on no SIGTERM (it kills within a second instead; so SIGALRM stands for SIGTERM, and SIGABRT for SIGKILL).

As root mpirun refuses to run, unless OMPI_ALLOW_RUN_AS_ROOT and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM say otherwise.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.observe.run import write_text
from glmforge.runtime.ssh import Ssh
from glmforge_ops.jobs.starters.base import Ranks
from glmforge_ops.jobs.starters.running import (
    KILL_LIMIT_S,
    Grace,
    kill_session,
    ranks_command,
    spawn,
    wait_all,
    write_assignment,
)
from glmforge_ops.jobs.starters.srun import ask_by_srun, srun_environment
from glmforge_ops.jobs.starters.ssh import SshStarter

_VERSION_LIMIT_S = 60

AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

_STANDS_FOR = {
    signal.SIGTERM: signal.SIGALRM,
    signal.SIGINT: signal.SIGALRM,
    signal.SIGHUP: signal.SIGALRM,
    signal.SIGKILL: signal.SIGABRT,
}


class MpirunStarter:
    """Starts ranks by one mpirun (`Starter`)."""

    name = "mpirun"

    def __init__(self, ssh: Ssh | None = None) -> None:
        self.ssh = ssh or Ssh()

    def start(self, ranks: Ranks) -> "Mpirun":
        if os.geteuid() == 0 and any(os.environ.get(name) != "1" for name in AS_ROOT):
            raise LaunchError(
                f"mpirun refuses to run as root: launch as another user, or set {AS_ROOT[0]}=1 and {AS_ROOT[1]}=1"
            )
        write_assignment(ranks)
        root = ranks.directory.root
        hostfile, agent = root / "hostfile", root / "ssh-command.sh"
        write_text(hostfile, "".join(f"{node} slots={ranks.ranks_per_node}\n" for node in ranks.nodes))
        write_text(agent, f'#!/bin/sh\nexec {self.ssh.call()} -- "$@"\n')
        agent.chmod(0o700)
        secrets = [word for name in ranks.secrets for word in ("-x", name)]
        options = [*mpirun_options(ranks, hostfile, agent), *secrets]
        command = [open_mpi(), *options, *ranks_command(root, "--by", "mpirun")]
        return Mpirun(ranks, spawn(command, ranks, environment=srun_environment(ranks), ends_with_us=True))

    def ask(self, node: str, words: Sequence[str]) -> str:
        return ask_by_srun(node, words) if "SLURM_JOB_ID" in os.environ else SshStarter(self.ssh).ask(node, words)


def open_mpi() -> str:
    """Open MPI's mpirun, whose name others use too: MPICH, and Slurm's PBS commands. Raises `LaunchError`."""
    for name in ("mpirun.openmpi", "orterun", "mpirun"):
        program = shutil.which(name)
        if program is None:
            continue
        version = [program, "--version"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # one that cannot say what it is, is not the one
            said = subprocess.run(version, capture_output=True, text=True, timeout=_VERSION_LIMIT_S, check=False)
            if "Open MPI" in said.stdout:
                return program
    raise LaunchError(
        "there is no mpirun of Open MPI on this machine; install it (openmpi-bin), or choose --starter ssh"
    )


def mpirun_options(ranks: Ranks, hostfile: Path, agent: Path) -> list[str]:
    """All that it needs to start the ranks node by node. `agent` is a program that takes ssh's place."""
    options = [
        *("--hostfile", str(hostfile)),
        *("-np", str(ranks.world_size)),
        *("--map-by", f"ppr:{ranks.ranks_per_node}:node"),
        *("--bind-to", "none"),
        "--tag-output",
        *_mca("orte_abort_on_non_zero_status", "0"),
    ]
    if "SLURM_JOB_ID" not in os.environ:
        options += [*_mca("plm", "rsh"), *_mca("plm_rsh_agent", str(agent)), *_mca("plm_rsh_no_tree_spawn", "1")]
    if ranks.interface is not None:
        options += [*_mca("oob_tcp_if_include", ranks.interface), *_mca("btl_tcp_if_include", ranks.interface)]
    return options


class Mpirun:
    """An mpirun that runs (`Running`)."""

    def __init__(self, ranks: Ranks, process: subprocess.Popen[bytes]) -> None:
        self._process, self._grace = process, Grace(ranks)

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is None and self._grace.is_over():
            self.kill()
        return self._grace.status() if status == 0 else status

    def signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(_STANDS_FOR.get(number, number))

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if not wait_all([self._process], KILL_LIMIT_S):
            self._process.terminate()  # it still kills what it can reach
            wait_all([self._process], KILL_LIMIT_S)
        kill_session(self._process)


def _mca(name: str, value: str) -> tuple[str, str, str]:
    return "--mca", name, value
