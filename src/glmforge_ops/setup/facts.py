# ruff: noqa: PTH112, PTH123, PTH208
"""What a machine has: GPUs, network, disks. Sent to nodes, so standard library only; it changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from glmforge_ops.hosts.on_node.wire import begin, say

TYPE_CHECKING = False  # as in typing, whose import takes long
if TYPE_CHECKING:
    from typing import Any

MIN_LOCAL_BYTES = 200 * 10**9
"""A smaller disk is the system's, not one for data and checkpoints."""
NETWORK_TYPES = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "fuse.sshfs", "fuse.glusterfs",
                 "fuse.weka", "wekafs", "panfs", "9p", "pvfs2", "afs", "fuse.juicefs", "fuse.s3fs")  # fmt: skip
_LIMIT_S = 20
_SYSTEM = re.compile(r"/|/(boot|snap|etc)(/.*)?|/(home|usr|var|opt|tmp)")


def main(program: bytes) -> None:
    if begin() is not None:
        say(facts())


def facts() -> dict[str, Any]:
    return {"gpus": _gpus(), "interface": _interface(), "rdma": _rdma()} | _file_systems()


def _gpus() -> list[str]:
    """Their names; empty ones, by their device files, where nvidia-smi is missing or fails."""
    devices = ["" for name in _list("/dev") if re.fullmatch(r"nvidia\d+", name)]
    if shutil.which("nvidia-smi") is None:
        return devices
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return devices
    return done.stdout.splitlines() if done.returncode == 0 else devices


def _interface() -> str | None:
    """That of the default route with the lowest metric; without one the only one that is up."""
    rows = [line.split() for line in _text("/proc/net/route").splitlines()[1:]]
    routes = [(int(row[6]), row[0]) for row in rows if len(row) > 6 and row[1] == "00000000"]
    if routes:
        return min(routes)[1]
    up = [name for name in _list("/sys/class/net") if _text(f"/sys/class/net/{name}/operstate") == "up"]
    return up[0] if len(up) == 1 else None


def _rdma() -> dict[str, list[str]]:
    """Devices with an active port, by link layer: InfiniBand, Ethernet."""
    found: dict[str, list[str]] = {}
    for device in sorted(_list("/sys/class/infiniband")):
        for port in _list(f"/sys/class/infiniband/{device}/ports"):
            where = f"/sys/class/infiniband/{device}/ports/{port}"
            devices = found.setdefault(_text(where + "/link_layer"), [])
            if _text(where + "/state").endswith("ACTIVE") and device not in devices:
                devices.append(device)
    return {layer: devices for layer, devices in found.items() if devices}


def _file_systems() -> dict[str, list[list[str]]]:
    """Mount points of disks, NVMe and large ones first, and those of network file systems with their source.

    Network file systems are not touched: they may hang.
    """
    disks, shared = [], []
    for line in _text("/proc/self/mounts").splitlines():
        source, path, kind = (
            re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), word) for word in line.split()[:3]
        )
        if kind in NETWORK_TYPES:
            shared.append([path, source])
        elif source.startswith("/dev/") and not _SYSTEM.fullmatch(path) and _size(path) >= MIN_LOCAL_BYTES:
            disks.append((not source.startswith("/dev/nvme"), -_size(path), path))
    return {"disks": [[path] for *_, path in sorted(disks)], "shared": shared}


def _size(path: str) -> int:
    try:
        room = os.statvfs(path)
    except OSError:
        return 0
    return room.f_blocks * room.f_frsize if os.path.isdir(path) else 0


def _list(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20).strip()
    except OSError:
        return ""
