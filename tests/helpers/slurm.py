"""A real Slurm cluster on this machine: a controller and two nodes, which are two slurmd under names of their own.

    with slurm_cluster(directory) as cluster:
        job = cluster.submit([...sbatch options..., "script", ...arguments...], environment={...})
        cluster.wait_for(job, "RUNNING")

Everything lies in one directory and listens on free ports of the loopback: munged with a key of its own, the daemons,
their state. All of them, and whatever jobs have left, are ended by their pids at the end: they carry the path of this
cluster's slurm.conf in their environment. Needs root (each node's GPUs are device nodes that lead nowhere) and Slurm;
on Debian it is installed if it is missing.

What a requeued job waits for before it starts again (two minutes) is skipped.
"""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from helpers.distributed import free_port
from helpers.packages import install_or_skip

NUM_NODES, GPUS_PER_NODE, CPUS_PER_NODE = 2, 2, 4
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "setpriv")

_START_LIMIT_S, _COMMAND_LIMIT_S, _STOP_LIMIT_S = 120, 60, 30
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")

# cgroup.conf is needed although nothing uses cgroups: without it slurmd looks for them, and ends if there are none.
# config_overrides lets nodes claim more CPUs than there are. `urgent` preempts `main`.
_SLURM_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
SlurmUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout=600
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=300
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} "
    "ThreadsPerCore=1 RealMemory=1000 Gres=gpu:{gpus}"
)


@dataclass(frozen=True)
class Cluster:
    """A running cluster; `directory` holds its configuration, state and logs."""

    directory: Path

    @property
    def nodes(self) -> list[str]:
        return [f"node{number}" for number in range(1, NUM_NODES + 1)]

    @property
    def environment(self) -> dict[str, str]:
        """What commands need to find this cluster, and its processes carry."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return outer | {"SLURM_CONF": str(self.directory / "slurm.conf")}

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
        """Rank -> pid of the tasks of the job's step that runs."""
        pids = {}
        for node in self.nodes:
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
            if waits and not self._lingers(number):
                hurried.add(job["Restarts"])
                self.run("scontrol", "update", f"JobId={number}", "StartTime=now+2")
            time.sleep(0.1)  # looks at what other processes have done; the outcome does not depend on it

    def _lingers(self, number: str) -> bool:
        """Whether some node still has to tidy up after the job: if it starts so soon again, it fails."""
        spools = list(self.directory.glob("spool.*"))
        return any([*spool.glob(f"*_{number}.*"), *spool.glob(f"job{int(number):05d}")] for spool in spools)

    def wait(self, number: str, timeout_s: float) -> dict[str, str]:
        """The job when it has ended for good."""
        self.poll(number, lambda: self.job(number)["JobState"] in _FINAL, timeout_s)
        return self.job(number)

    def log_of(self, job: Mapping[str, str]) -> str:
        """The end of the job's log."""
        log = Path(job.get("StdOut", ""))
        return log.read_bytes()[-6000:].decode(errors="replace") if log.is_file() else f"no log {log}"


def install_slurm_or_skip() -> None:
    """Skip the test, saying what is missing, where no cluster can be had."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a Slurm cluster with GPUs that are device nodes")
    install_or_skip(PROGRAMS, PACKAGES)


@contextmanager
def slurm_cluster(directory: Path) -> Iterator[Cluster]:
    """A cluster in `directory`, which must be empty, within the block."""
    install_slurm_or_skip()
    cluster = Cluster(directory)
    _write_configuration(directory, cluster.nodes)
    munge = directory / "munge"
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={munge / file}" for option, file in files.items()]
    try:
        with ExitStack() as daemons:
            # --force: the path to its socket may be closed to others, who are not to use it.
            daemons.enter_context(_daemon(cluster, "munged", "--foreground", "--force", *options))
            _wait_until(lambda: (munge / "socket").exists(), cluster)
            daemons.enter_context(_daemon(cluster, "slurmctld", "-D"))
            for node in cluster.nodes:
                daemons.enter_context(_daemon(cluster, "slurmd", "-D", "-N", node))
            _wait_until(lambda: _num_idle(cluster) == NUM_NODES, cluster)
            yield cluster
    finally:
        _end_leftovers(cluster)


def _write_configuration(directory: Path, nodes: Sequence[str]) -> None:
    host = socket.gethostname().split(".")[0]
    for name in ("munge", "state", "gpus", "logs", *(f"spool.{node}" for node in nodes)):
        (directory / name).mkdir(mode=0o700)
    key = directory / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    for number in range(GPUS_PER_NODE):  # as /dev/null is
        os.mknod(directory / "gpus" / f"nvidia{number}", 0o600 | 0o020000, os.makedev(1, 3))
    gpus = f"File={directory}/gpus/nvidia[0-{GPUS_PER_NODE - 1}]"
    (directory / "gres.conf").write_text("".join(f"NodeName={node} Name=gpu {gpus}\n" for node in nodes))
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    lines = [
        _NODE.format(name=node, host=host, port=free_port(), cpus=CPUS_PER_NODE, gpus=GPUS_PER_NODE) for node in nodes
    ]
    conf = _SLURM_CONF.format(host=host, port=free_port(), directory=directory, nodes="\n".join(lines))
    (directory / "slurm.conf").write_text(conf)


@contextmanager
def _daemon(cluster: Cluster, *command: str) -> Iterator[None]:
    """A daemon in the foreground, which is not to outlive this process."""
    log = cluster.directory / "logs" / f"{command[0]}-{command[-1].rpartition('/')[2]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until(reached: Callable[[], bool], cluster: Cluster) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not reached():
        if time.monotonic() > deadline:
            logs = sorted((cluster.directory / "logs").iterdir())
            tails = [f"--- {log.name}\n{log.read_bytes()[-1500:].decode(errors='replace')}" for log in logs]
            raise AssertionError("the cluster does not come up\n" + "\n".join(tails))
        time.sleep(0.1)  # waits for a daemon; the outcome does not depend on it


def _num_idle(cluster: Cluster) -> int:
    command = ["sinfo", "--noheader", "--partition=main", "--states=idle", "--format=%D"]
    answer = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False
    )
    return int(answer.stdout.strip() or 0) if answer.returncode == 0 else 0


def _end_leftovers(cluster: Cluster) -> None:
    """Jobs' processes, which are nobody's children."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == cluster.environment["SLURM_CONF"] and process.pid != os.getpid():
                process.send_signal(signal.SIGKILL)
