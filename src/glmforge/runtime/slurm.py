"""What Slurm's controller says of a job or a node, asked through its own commands."""

import re
import socket
import subprocess

from glmforge.errors import ConfigError

# States in which a job's processes ended without Slurm's doing: what they have not done may be tried again.
DIED = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"})


def is_queued(job: str) -> bool:
    """Whether Slurm still has an array job that waits or runs; while its controller does not answer, it may."""
    answer = _squeue("--jobs", job, "--format", "%T")
    if answer.returncode:
        return "Invalid job id" not in answer.stderr
    return bool(answer.stdout.strip())


def could_not_be_launched(job: str) -> bool:
    """Whether Slurm holds an array job whose start failed on the node: it would wait for an administrator for ever."""
    return "launch failed requeued held" in _squeue("--jobs", job, "--format", "%r").stdout


def end_states(job: str) -> set[str]:
    """The states of an array job's jobs that have ended; none if Slurm has forgotten them (MinJobAge, minutes)."""
    return set(_squeue("--array", "--states=all", "--jobs", job, "--format", "%T").stdout.split())


def cancel(job: str) -> None:
    """End a job, if it has not ended yet."""
    subprocess.run(["scancel", job], check=False)


def address_of_node(name: str) -> str:
    """Where a node is reached: by its name, or, where the network does not know that, by the address that Slurm uses.

    The controller is asked in the second case only: thousands of ranks may look for the same node at once. Raises
    `ConfigError` if it does not know either.
    """
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror:
        pass
    else:
        return name
    try:
        command = ["scontrol", "show", "node", "-o", name]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        answer = ""
    found = re.search(r"\bNodeAddr=(\S+)", answer)
    if found is None:
        raise ConfigError(
            f"the job's first node, {name}, is known neither to the network nor to scontrol: set MASTER_ADDR to its "
            "address"
        )
    return found[1]


def _squeue(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["squeue", "--noheader", *arguments], capture_output=True, text=True)
