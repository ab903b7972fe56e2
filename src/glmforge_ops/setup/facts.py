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
    return {"gpus": _gpus(), "links": _links(), **_file_systems()}


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


def _links() -> list[str]:
    """Link layers (InfiniBand, Ethernet) of the active RDMA ports."""
    ports = [f"/sys/class/infiniband/{device}/ports" for device in _list("/sys/class/infiniband")]
    active = [f"{at}/{port}" for at in ports for port in _list(at) if _text(f"{at}/{port}/state").endswith("ACTIVE")]
    return sorted({_text(f"{port}/link_layer") for port in active})


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
