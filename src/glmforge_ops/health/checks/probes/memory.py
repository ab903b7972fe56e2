"""Memory: how much there is and is free, what is set aside, errors that its controllers counted, `/dev/shm`."""

from __future__ import annotations

import os
import re

from glmforge_ops.health.checks.probes.reading import at, names_in, read_number, read_text

_CONTROLLERS = "/sys/devices/system/edac/mc"


def gather(cluster: dict) -> dict:
    info = {
        name: int(value)
        for name, value in re.findall(r"^(\S+):\s+(\d+)", read_text("/proc/meminfo") or "", re.MULTILINE)
    }
    reserved = None
    if "HugePages_Total" in info and "Hugepagesize" in info:
        reserved = info["HugePages_Total"] * info["Hugepagesize"] * 1024
    used_swap = info["SwapTotal"] - info["SwapFree"] if "SwapTotal" in info and "SwapFree" in info else None
    controllers = [name for name in names_in(_CONTROLLERS) if name[:2] == "mc" and name[2:].isdigit()]
    return {
        "total": _bytes(info.get("MemTotal")),
        "available": _bytes(info.get("MemAvailable")),
        "swap_used": _bytes(used_swap),
        "hugepages": reserved,
        "controllers": len(controllers),
        "corrected": _sum(controllers, "ce_count"),
        "uncorrected": _sum(controllers, "ue_count"),
        **_shared_memory(),
    }


def _bytes(kibibytes: int | None) -> int | None:
    return None if kibibytes is None else kibibytes * 1024


def _sum(controllers: list, name: str) -> float:
    return sum(read_number(f"{_CONTROLLERS}/{each}/{name}") or 0 for each in controllers)


def _shared_memory() -> dict:
    try:
        found = os.statvfs(at("/dev/shm"))
    except OSError:
        return {"shm_total": None, "shm_free": None}
    return {"shm_total": found.f_blocks * found.f_frsize, "shm_free": found.f_bavail * found.f_frsize}
