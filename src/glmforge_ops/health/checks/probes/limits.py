"""Limits of a process of this user."""

from __future__ import annotations

import re

from glmforge_ops.health.checks.probes.reading import read_text

_NAMES = {
    "open_files": "Max open files",
    "processes": "Max processes",
    "locked_memory": "Max locked memory",
    "core_file": "Max core file size",
}


def gather(cluster: dict) -> dict:
    text = read_text("/proc/self/limits") or ""
    facts: dict = {}
    for name, label in _NAMES.items():
        found = re.search(rf"^{label}\s+(\d+|unlimited)\s+(\d+|unlimited)", text, re.MULTILINE)
        facts[name] = _number(found.group(1)) if found else None
        facts[f"{name}_hard"] = _number(found.group(2)) if found else None
        facts[f"{name}_unlimited"] = found.group(1) == "unlimited" if found else None
    facts["core_pattern"] = read_text("/proc/sys/kernel/core_pattern")
    return facts


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
