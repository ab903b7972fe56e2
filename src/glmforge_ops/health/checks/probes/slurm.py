"""Slurm on a node: its daemon, and whether munge takes what another node has signed."""

import os
import re
import subprocess

from glmforge_ops.health.checks.probes.reading import find_program

_LIMIT_S = 5
_MOST = 100_000


def gather(cluster: dict) -> dict:
    return {"slurmd_there": find("slurmd") is not None, "slurmd_up": _slurmd_runs()}


def sign(cluster: dict, arguments: dict) -> dict:
    return _ask([find("munge") or "munge", *_socket(), "-n"], None)


def read_signed(cluster: dict, arguments: dict) -> dict:
    return _ask([find("unmunge") or "unmunge", *_socket()], arguments["credential"])


def _socket() -> list:
    """The option for munged's socket, if Slurm is told of another one than the usual."""
    told = _ask([find("scontrol") or "scontrol", "show", "config"], None)["printed"] or ""
    found = re.search(r"^AuthInfo\s*=\s*(?:\S*,)?socket=([^,\s]+)", told, re.MULTILINE)
    return ["--socket=" + found[1]] if found else []


def find(program: str) -> "str | None":
    return find_program(program, ("/usr/sbin", "/sbin"))


def _ask(command: "list[str]", text: "str | None") -> dict:
    try:
        done = subprocess.run(
            command,
            input=(text or "").encode(),
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        return {"status": None, "printed": None, "said": "there is no " + os.path.basename(command[0])}
    except subprocess.TimeoutExpired:
        return {"status": 1, "printed": None, "said": f"no answer within {_LIMIT_S} s"}
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip()
    lines = err.splitlines() or [line for line in out.splitlines() if line.startswith("STATUS")]
    return {"status": done.returncode, "printed": out[:_MOST].strip(), "said": lines[-1] if lines else None}


def _slurmd_runs() -> bool:
    """Whether a slurmd runs for this host: not in a container of another name, nor under the name of another node."""
    for pid in os.listdir("/proc"):
        if pid.isdecimal():
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    found = file.read().strip() == "slurmd"
                if found and _is_of_this_host(pid):
                    return True
            except OSError:  # it has just ended
                continue
    return False


def _is_of_this_host(pid: str) -> bool:
    with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
        words = file.read().split("\0")
    names = [words[at + 1] if word == "-N" else word[2:] for at, word in enumerate(words) if word.startswith("-N")]
    own = os.uname().nodename.split(".")[0]
    if names and names[0].split(".")[0] != own:
        return False
    try:
        return os.readlink(f"/proc/{pid}/ns/uts") == os.readlink("/proc/self/ns/uts")
    except OSError:  # another user's
        return True
