# ruff: noqa: PTH110, PTH112, PTH113, PTH116, PTH118, PTH120, PTH123, PTH208
"""What a machine has: programs, GPUs, networks, disks. Runs on any machine, like `changes`, and changes nothing."""

from __future__ import annotations

import os
import pwd
import re
import resource
import shlex
import socket
import subprocess
import time

TYPE_CHECKING = False  # as in typing, whose import takes long
if TYPE_CHECKING:
    from typing import Any

_PROGRAM_LIMIT_S = 20
_PACKAGES = ("glmforge", "torch")
_FIND_PACKAGES = """import sys
for name in sys.argv[1:]:
    for finder in sys.meta_path:
        if hasattr(finder, "find_spec") and finder.find_spec(name, None) is not None:
            print(name)
            break
"""
NETWORK_TYPES = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "fuse.sshfs", "fuse.glusterfs",
                 "fuse.weka", "wekafs", "panfs", "9p", "pvfs2", "afs", "fuse.juicefs", "fuse.s3fs")  # fmt: skip
_PROGRAMS = ("sshd", "ssh", "torchrun", "mpirun", "srun", "sbatch", "nvidia-smi", "ibstat")


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that the plan is made from.

    `request["paths"]`: whose file systems are wanted; `request["python"]`: the command whose packages are.
    """
    mounts, python = _mounts(), _words(request.get("python", ""))
    return {
        "packages": _packages(python),
        "programs": [name for name in _PROGRAMS if _which(name, python)],
        "gpus": find_gpus(),
        "interfaces": _interfaces(),
        "route": _default_interface() or _only_interface(),
        "infiniband": _infiniband(),
        "home": _path(_home(), mounts),
        "home_is_users": "GLMFORGE_DEV_OWN_HOME" in os.environ,
        "home_is_open": any(_others_may_write(_home() + path) for path in ("", "/.ssh", "/.ssh/authorized_keys")),
        "paths": {path: _path(path, mounts) for path in request.get("paths", [])},
        "mounts": [_with_room(mount) for mount in mounts if _counts(mount)] if request.get("mounts") else [],
        "addresses": _addresses(request.get("names", [])),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
    }


def greet(request: dict[str, Any]) -> dict[str, Any]:
    """Whether this machine can reach another one's port: `{"name", "port"}`; and what stands in its way if not."""
    started = time.monotonic()
    try:
        with socket.create_connection((request["name"], request["port"]), timeout=request["timeout_s"]) as there:
            there.settimeout(request["timeout_s"])
            there.recv(64)  # an ssh server greets first: what only accepts connections is none
    except OSError as error:
        return {"reached": False, "reason": error.strerror or str(error)}
    return {"reached": True, "seconds": time.monotonic() - started}


def can_bind(port: int) -> bool:
    """Whether nobody listens on the port here."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True


def _home() -> str:
    """Where sshd looks, whatever HOME says."""
    return pwd.getpwuid(os.getuid()).pw_dir


def _others_may_write(path: str) -> bool:
    return os.path.exists(path) and bool(os.stat(path).st_mode & 0o022)


def _which(name: str, python: list[str] | None = None) -> str | None:
    beside = os.path.join(os.path.dirname(python[0]) if python else "", name)  # of a virtual environment
    search = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/sbin"]
    candidates = [*([beside] if beside[0] == "/" else []), *(os.path.join(folder, name) for folder in search)]
    return next((file for file in candidates if os.path.isfile(file) and os.access(file, os.X_OK)), None)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation mark without the other
        return []


def _packages(python: list[str]) -> dict[str, bool]:
    """Which of those that jobs need this Python finds; none if it does not run."""
    found = ""
    if python:
        command = [*python, "-c", _FIND_PACKAGES, *_PACKAGES]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=_PROGRAM_LIMIT_S,
            )  # fmt: skip
            found = done.stdout.decode("utf-8", "replace")
        except (OSError, subprocess.TimeoutExpired):
            pass
    return {name: name in found.split() for name in _PACKAGES}


def find_gpus() -> dict[str, Any]:
    """Their number and names; by their device files where the driver's program is not there."""
    program = _which("nvidia-smi")
    devices = len([name for name in _list("/dev") if re.fullmatch(r"nvidia\d+", name)])
    if program is None:
        return {"count": devices, "names": [], "source": "device files"}
    try:
        done = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_PROGRAM_LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"count": 0, "names": [], "source": "nvidia-smi", "error": str(error)[:200]}
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if done.returncode != 0:
        return {"count": 0, "names": [], "source": "nvidia-smi", "error": lines[-1][:200] if lines else "no output"}
    return {"count": len(lines), "names": sorted(set(lines))[:8], "source": "nvidia-smi"}


def _interfaces() -> dict[str, dict[str, Any]]:
    found = {}
    for name in sorted(_list("/sys/class/net")):
        where = "/sys/class/net/" + name
        found[name] = {
            "mtu": int(_text(where + "/mtu") or 0),
            "state": _text(where + "/operstate"),
            "mbit": int(_text(where + "/speed") or -1),
            "type": int(_text(where + "/type") or 0),  # 32: InfiniBand
        }
    return found


def _default_interface() -> str | None:
    """Of the default route with the lowest metric; None without one."""
    routes = []
    for line in _text("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 6 and fields[1] == "00000000":
            routes.append((int(fields[6]), fields[0]))
    return min(routes)[1] if routes else None


def _only_interface() -> str | None:
    """Where nodes have no way out: what is up besides the loopback, if that is one."""
    up = [name for name, found in _interfaces().items() if name != "lo" and found["state"] == "up"]
    return up[0] if len(up) == 1 else None


def _infiniband() -> list[dict[str, str]]:
    return [
        {
            "device": device,
            "port": port,
            "state": _text(f"/sys/class/infiniband/{device}/ports/{port}/state"),
            "link": _text(f"/sys/class/infiniband/{device}/ports/{port}/link_layer"),
            "rate": _text(f"/sys/class/infiniband/{device}/ports/{port}/rate"),
        }
        for device in sorted(_list("/sys/class/infiniband"))
        for port in sorted(_list(f"/sys/class/infiniband/{device}/ports"))
    ]


def _mounts() -> list[dict[str, Any]]:
    found = []
    for line in _text("/proc/self/mounts").splitlines():
        fields = line.split(" ")
        if len(fields) >= 4:
            source, where = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), text) for text in fields[:2])
            found.append({"source": source, "path": where, "type": fields[2], "options": fields[3]})
    return found


def _counts(mount: dict[str, Any]) -> bool:
    """Disks and network file systems, not what the kernel shows of itself."""
    return mount["type"] in NETWORK_TYPES or mount["source"].startswith("/dev/")


def _with_room(mount: dict[str, Any]) -> dict[str, Any]:
    """With its size and free bytes; a network file system is not touched, since it may hang."""
    if mount["type"] in NETWORK_TYPES:
        return dict(mount, network=True)
    try:
        room = os.statvfs(mount["path"])
    except OSError:
        return dict(mount, network=False)
    return dict(
        mount,
        network=False,
        size=room.f_blocks * room.f_frsize,
        free=room.f_bavail * room.f_frsize,
        directory=os.path.isdir(mount["path"]),
    )


def _path(path: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """The file system under a path, and what the path is."""
    real = os.path.realpath(path)
    holding = [mount for mount in mounts if (real + "/").startswith(mount["path"].rstrip("/") + "/")]
    mount = max(reversed(holding), key=lambda found: len(found["path"])) if holding else {}
    kind = "directory" if os.path.isdir(real) else "file" if os.path.lexists(real) else "absent"
    return {
        "kind": kind,
        "writable": os.access(real, os.W_OK),
        "type": mount.get("type", ""),
        "source": mount.get("source", ""),
        "network": mount.get("type") in NETWORK_TYPES,
    }


def _addresses(names: list[str]) -> dict[str, list[str]]:
    """What this machine takes each name for; none: it knows no such name."""
    found = {}
    for name in names:
        try:
            found[name] = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})
        except OSError:
            found[name] = []
    return found


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20).strip()
    except OSError:  # also "Invalid argument", as the speed of an interface that is down
        return ""
