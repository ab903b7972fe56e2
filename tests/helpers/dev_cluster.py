"""Development clusters in tests: jobs on a real Slurm of two nodes, hosts in namespaces, and what must not be left.

    with slurm_cluster() as cluster:
        job = cluster.submit([...sbatch options..., "script", ...arguments...], environment={...})
        cluster.wait(job, timeout_s)

The cluster itself is `glmforge_ops.dev`; packages that are missing are installed where that is allowed. What a
requeued job waits for before it starts again (two minutes) is skipped.
"""

import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from glmforge.runtime.process import ProcessIdentity
from glmforge_ops.dev import DevCluster, DevOptions, development_cluster
from glmforge_ops.dev.hosts import namespaces_refusal, needed
from helpers.packages import install_or_skip

NUM_NODES, GPUS_PER_NODE, CPUS_PER_NODE = 2, 2, 4

_COMMAND_LIMIT_S = 60
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")


@dataclass(frozen=True)
class Cluster:
    """A running cluster, and what its jobs do."""

    dev: DevCluster

    @property
    def directory(self) -> Path:
        return self.dev.directory

    @property
    def environment(self) -> dict[str, str]:
        """What commands need to find this cluster, and its processes carry."""
        return self.dev.environment

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        """Output of a Slurm command, which must succeed."""
        done = subprocess.run(
            command,
            env=self.environment | dict(environment or {}),
            capture_output=True,
            text=True,
            timeout=_COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        """Number of the job that `sbatch <arguments>` makes."""
        return self.run("sbatch", "--parsable", *arguments, environment=environment).strip()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of a job: JobState, Restarts, Reason, ExitCode, ..."""
        words = self.run("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def tasks(self, job: str) -> dict[int, int]:
        """Rank -> pid of the tasks of the job's step that runs, in a cluster without namespaces."""
        pids = {}
        for node in self.dev.nodes:
            for line in self.run("scontrol", "listpids", f"{job}.0", node).splitlines()[1:]:
                pid, _, _, _, rank = line.split()
                if rank.isdigit():
                    pids[int(rank)] = int(pid)
        return pids

    def poll(self, number: str, reached: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `reached()`, starting the job soon whenever it has been requeued.

        Not within a second: a node compares whole seconds of the job's end and of the next start's credential, takes
        one of the same second for the old one, revoked, and refuses the start, which Slurm counts as failed.
        """
        deadline = time.monotonic() + timeout_s
        hurried = set[str]()
        while not reached():
            job = self.job(number)
            assert time.monotonic() < deadline, f"not reached in {timeout_s:g} s: {job}\n{self.log_of(job)}"
            assert job["JobState"] not in _FINAL or reached(), f"has ended: {job}\n{self.log_of(job)}"
            waits = job["JobState"] == "PENDING" and job["Reason"] == "BeginTime" and job["Restarts"] not in hurried
            if waits and not self.lingers(number):
                hurried.add(job["Restarts"])
                self.run("scontrol", "update", f"JobId={number}", "StartTime=now+2")
            time.sleep(0.1)  # looks at what other processes have done; the outcome does not depend on it

    def lingers(self, number: str) -> bool:
        """Whether some node that is up still has to tidy up after the job: if it starts so soon again, it fails.

        What is older than the node's first process is of the time before the node was killed, and stays.
        """
        hosts = self.dev.refresh().hosts
        up = [name for name in self.dev.nodes if hosts[name].state != "failed" and not self.dev.ended_daemons(name)]
        return any(self._left(name, number, began_at(hosts[name].keeper)) for name in up)

    def _left(self, node: str, number: str, since: float) -> bool:
        spool = self.dev.places.spool(node)
        for path in [*spool.glob(f"*_{number}.*"), *spool.glob(f"job{int(number):05d}")]:
            with suppress(FileNotFoundError):
                if path.stat().st_mtime > since:
                    return True
        return False

    def wait(self, number: str, timeout_s: float) -> dict[str, str]:
        """The job when it has ended for good."""
        self.poll(number, lambda: self.job(number)["JobState"] in _FINAL, timeout_s)
        return self.job(number)

    def log_of(self, job: Mapping[str, str]) -> str:
        """The end of the job's log."""
        log = Path(job.get("StdOut", ""))
        return log.read_bytes()[-6000:].decode(errors="replace") if log.is_file() else f"no log {log}"


def began_at(process: ProcessIdentity | None) -> float:
    """When a process of this machine began, in seconds since 1970."""
    assert process is not None
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + process.began / os.sysconf("SC_CLK_TCK")


def install_slurm_or_skip() -> None:
    """Skip the test, saying what is missing, where Slurm cannot be had."""
    programs = needed(slurm=True, hosts=False)
    install_or_skip(tuple(programs), tuple(programs.values()))


def hosts_or_skip() -> None:
    """Skip the test, saying what is missing, where there can be no hosts in namespaces."""
    programs = needed(slurm=False, hosts=True)
    install_or_skip(tuple(programs), tuple(programs.values()))
    if (refusal := namespaces_refusal()) is not None:
        pytest.skip(f"hosts in namespaces of their own: {refusal}")


@contextmanager
def short_directory() -> Iterator[Path]:
    """A new directory for clusters: below pytest's own, paths get longer than those of Slurm's sockets may be."""
    with tempfile.TemporaryDirectory(prefix="dev-") as directory:
        yield Path(directory)


@contextmanager
def slurm_cluster(grace_time_s: int = 300) -> Iterator[Cluster]:
    """A plain cluster within the block; patient with a busy machine."""
    install_slurm_or_skip()
    size = DevOptions(nodes=NUM_NODES, gpus=GPUS_PER_NODE, cpus=CPUS_PER_NODE)
    first_job = 1 + secrets.randbelow(
        9000
    )  # another such cluster on this machine makes other ports of its jobs' numbers
    options = replace(size, slurmd_timeout_s=600, grace_time_s=grace_time_s, mode="plain", first_job=first_job)
    with short_directory() as directory, development_cluster(directory / "cluster", options) as dev:
        yield Cluster(dev)
