"""What the kernel's log tells of hardware and memory since the machine started.

It can often be read by root only: then there is nothing to tell.
"""

from __future__ import annotations

import re

from glmforge_ops.health.checks.probes.reading import read_number, run

_TIME = re.compile(r"\[\s*(\d+\.\d+)\]")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)")
_OUT_OF_MEMORY = re.compile(r"Out of memory: Kill|oom-kill:|Memory cgroup out of memory")
_MACHINE_CHECK = re.compile(r"\[Hardware Error\]|mce: .*Machine Check|EDAC .*\bUE\b")
_MAX_EVENTS = 100


def gather(cluster: dict) -> dict:
    text = run("dmesg") or run("journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager", "-q")
    if not text:
        return {"readable": False, "xids": [], "out_of_memory": [], "machine_checks": []}
    uptime = read_number("/proc/uptime")
    xids, killed, checks = [], [], []
    for line in text.splitlines():
        found = _XID.search(line)
        if found:
            xids.append({"gpu": found.group(1), "xid": int(found.group(2)), "age": _age(line, uptime)})
        elif _OUT_OF_MEMORY.search(line):
            killed.append({"line": line[:300], "age": _age(line, uptime)})
        elif _MACHINE_CHECK.search(line):
            checks.append({"line": line[:300], "age": _age(line, uptime)})
    return {
        "readable": True,
        "xids": xids[-_MAX_EVENTS:],
        "out_of_memory": killed[-_MAX_EVENTS:],
        "machine_checks": checks[-_MAX_EVENTS:],
    }


def _age(line: str, uptime: float | None) -> float | None:
    """Seconds since it was logged."""
    logged = _TIME.search(line)
    return max(0.0, uptime - float(logged.group(1))) if logged and uptime is not None else None
