"""Where the ranks of an attempt meet: an address of the first node that all nodes reach, and a port that is free there.

Found out by the first node itself (`glmforge.launch.ranks.meeting`): it alone knows its interfaces and its free ports.
"""

import ipaddress
import subprocess
import sys
from collections.abc import Callable, Sequence

from glmforge.cluster.hosts.hostfile import LOCAL
from glmforge.cluster.hosts.ssh import Ssh, explain_unreachable, last_line
from glmforge.errors import LaunchError
from glmforge.launch.ranks.meeting import meeting_place

_LIMIT_S = 60.0

CommandOn = Callable[[str, list[str]], list[str]]
"""Makes the command line that runs words on a node."""


def by_ssh(ssh: Ssh) -> CommandOn:
    return lambda node, words: words if node in LOCAL else ssh.to(node, *words)


def by_srun(node: str, words: list[str]) -> list[str]:
    """As a step of the job that this process is part of."""
    options = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--export=ALL", "--input=none"]
    return ["srun", *options, *words]


def find_meeting_place(
    nodes: Sequence[str], command_on: CommandOn, number: int, *, here: bool = False
) -> tuple[str, int]:
    """Address and port where ranks on `nodes` meet.

    Args:
        nodes: names, or addresses where nodes cannot resolve each other's names.
        number: of the job and attempt; the port is made of it.
        here: whether the first node is this machine.

    Raises `LaunchError` if the first node cannot be asked, or has no route to the others.
    """
    others = [node for node in nodes[1:] if node not in LOCAL]
    if here or (len(nodes) == 1 and nodes[0] in LOCAL):
        return meeting_place(number, others)
    words = [sys.executable, "-P", "-m", "glmforge.launch.ranks.meeting", str(number), *others]
    command = command_on(nodes[0], words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except FileNotFoundError:
        raise LaunchError(f"there is no '{command[0]}' on this machine; choose another --starter") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{nodes[0]}: has not answered within {_LIMIT_S:g} s; look at it, or exclude it") from None
    if done.returncode:
        raise LaunchError(f"{nodes[0]}: {_why(command, done)}")
    return _parsed(nodes[0], done.stdout)


def _why(command: Sequence[str], done: "subprocess.CompletedProcess[str]") -> str:
    if command[0] == "ssh" and done.returncode == 255:
        return "; ".join(explain_unreachable(done.stderr))
    return last_line(done.stderr) or f"'{command[0]}' ended with status {done.returncode}"


def _parsed(node: str, answer: str) -> tuple[str, int]:
    """What a shell's start-up files print comes before."""
    words = answer.split()[-2:]
    try:
        address, port = words
        return str(ipaddress.ip_address(address)), int(port)
    except ValueError:
        raise LaunchError(
            f"{node}: answers {last_line(answer)!r} instead of an address and a port; is it the same glmforge?"
        ) from None
