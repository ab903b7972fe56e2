"""GPUs as `nvidia-smi` tells of them, in the same words as `nvml.py`.

An unknown field makes it refuse a whole query, and fields come and go with the driver's version: what belongs
together is asked in one query, and one that is refused leaves the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from glmforge_ops.health.checks.probes.reading import first_number, run

_QUERIES = (
    {
        "name": "name",
        "uuid": "uuid",
        "temperature": "temperature.gpu",
        "utilization": "utilization.gpu",
        "memory_total": "memory.total",
        "memory_used": "memory.used",
        "persistence": "persistence_mode",
    },
    {"power_limit": "enforced.power.limit", "power_default": "power.default_limit"},
    {"clock": "clocks.sm", "clock_max": "clocks.max.sm"},
    {"clock_application": "clocks.applications.graphics", "clock_default": "clocks.default_applications.graphics"},
    {"ecc": "ecc.mode.current", "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total"},
    {"temperature_memory": "temperature.memory"},
    {"throttle": "clocks_event_reasons.active"},
    {"throttle": "clocks_throttle_reasons.active"},
)
_ROWS = {
    "rows_uncorrectable": "remapped_rows.uncorrectable",
    "rows_pending": "remapped_rows.pending",
    "rows_failed": "remapped_rows.failure",
}
_TEXTS = ("name", "uuid")
_FLAGS = ("persistence", "ecc", "rows_pending", "rows_failed")
_MIB = ("memory_total", "memory_used")
_NAMES = sorted({name for query in (*_QUERIES, _ROWS) for name in query} | {"temperature_slowdown"})


def smi_devices() -> list[dict] | None:
    """What is known of each GPU; None if there is no `nvidia-smi` or it fails."""
    found: list[dict] | None = None
    for query in _QUERIES:
        rows = _table("--query-gpu=" + ",".join(query.values()), len(query))
        if rows is None:
            continue
        if found is None:
            found = [{"lost": False, "pids": None, **dict.fromkeys(_NAMES)} for _ in rows]
        for device, row in zip(found, rows):  # noqa: B905  # not in Python 3.8
            device.update(_values(query, row))
    if found is None:
        return None
    by_uuid = {device["uuid"]: device for device in found}
    for row in _table("--query-remapped-rows=gpu_uuid," + ",".join(_ROWS.values()), len(_ROWS) + 1) or []:
        if row[0] in by_uuid:
            by_uuid[row[0]].update(_values(_ROWS, row[1:]))
    processes = _table("--query-compute-apps=gpu_uuid,pid", 2)
    if processes is not None:
        for device in found:
            device["pids"] = [int(pid) for uuid, pid in processes if uuid == device["uuid"] and pid.isdigit()]
    return found


def smi_driver() -> str | None:
    rows = _table("--query-gpu=driver_version", 1)
    return rows[0][0] if rows else None


def _table(query: str, width: int) -> list[list[str]] | None:
    text = run("nvidia-smi", query, "--format=csv,noheader,nounits")
    if text is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [row for row in rows if len(row) == width]


def _values(names: Iterable[str], row: list[str]) -> dict:
    return {name: _value(name, text) for name, text in zip(names, row)}  # noqa: B905  # not in Python 3.8


def _value(name: str, text: str) -> object:
    """None for "[N/A]", "[Not Supported]" and what else is no value."""
    if name in _TEXTS:
        return text
    if name in _FLAGS:
        return {"enabled": True, "yes": True, "1": True, "disabled": False, "no": False, "0": False}.get(text.lower())
    if text.lower().startswith("0x"):
        return int(text, 16)
    number = first_number(text) if text[:1].isdigit() else None
    return number * (1 << 20) if number is not None and name in _MIB else number
