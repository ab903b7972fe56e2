"""A node at a glance: system, memory, processes of training, network. Nothing here can hang."""

import os
import platform
import pwd
import re
import resource
import socket
import time
from pathlib import Path

_TRAINING = re.compile(r"(^|[\s/])(torchrun|deepspeed|glmforge train)(\s|$)|torch\.distributed\.(run|launch)")
_AT_MOST = 200
_VIRTUAL = ("lo", "docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "cilium", "dummy", "ifb")


def gather(cluster: dict) -> dict:
    return {
        "host": socket.gethostname(),
        "system": _system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uptime_s": _number("/proc/uptime"),
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "shared_memory": _shared_memory(),
        "limits": {name: _limit(kind) for name, kind in _LIMITS.items()},
        "interfaces": _interfaces(),
        "rdma_ports": _rdma_ports(),
        "training": _training(),
    }


_LIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "locked_memory": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
    "core_file": resource.RLIMIT_CORE,
}


def _limit(kind: int) -> "int | None":
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _read(path: str) -> "str | None":
    try:
        with Path(path).open(errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return None


def _number(path: str) -> "float | None":
    try:
        return float((_read(path) or "").split()[0])
    except (IndexError, ValueError):
        return None


def _system() -> "str | None":
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release") or "", re.MULTILINE)
    return found.group(1) if found else None


def _memory() -> dict:
    """Bytes."""
    lines = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo") or "", re.MULTILINE))
    names = {"total": "MemTotal", "available": "MemAvailable", "swap_total": "SwapTotal", "swap_free": "SwapFree"}
    return {name: int(lines[line]) * 1024 if line in lines else None for name, line in names.items()}


def _shared_memory() -> "dict | None":
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return {"total": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def _interfaces() -> list:
    """Those that may lead to other nodes; speed in Mbit/s."""
    found = []
    for name in _names("/sys/class/net"):
        at = "/sys/class/net/" + name
        if name.startswith(_VIRTUAL) or not Path(at, "operstate").exists():
            continue
        speed = _number(at + "/speed")
        found.append(
            {
                "name": name,
                "state": _read(at + "/operstate"),
                "speed": speed if speed and speed > 0 else None,
                "mtu": _number(at + "/mtu"),
            }
        )
    return found


def _rdma_ports() -> list:
    found = []
    for device in _names("/sys/class/infiniband"):
        for port in _names(f"/sys/class/infiniband/{device}/ports"):
            at = f"/sys/class/infiniband/{device}/ports/{port}/"
            facts = {name: _read(at + name) for name in ("state", "rate", "link_layer")}
            found.append({"name": device + ":" + port, **facts})
    return found


def _training() -> list:
    """Processes that train, with their user and age; `parent` 1: what had started them has ended."""
    try:
        ticks, started_up = os.sysconf("SC_CLK_TCK"), time.time() - (_number("/proc/uptime") or 0)
    except (OSError, ValueError):
        return []
    own = _ancestors()
    found = []
    for pid in _names("/proc"):
        if not pid.isdecimal() or int(pid) in own:
            continue
        words = (_read(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
        stat = (_read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        if not _TRAINING.search(words) or len(stat) < 20:
            continue
        age_s = time.time() - started_up - float(stat[19]) / ticks
        entry = {"pid": int(pid), "user": _user(pid), "age_s": age_s, "parent": int(stat[1]), "command": words[:120]}
        found.append(entry)
    return found[:_AT_MOST]


def _ancestors() -> set:
    """This process and those that started it."""
    pid, found = os.getpid(), set()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = (_read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        pid = int(stat[1]) if len(stat) > 1 else 0
    return found


def _user(pid: str) -> "str | None":
    try:
        number = Path("/proc", pid).stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _names(path: str) -> list:
    try:
        return sorted(entry.name for entry in Path(path).iterdir())
    except OSError:
        return []
