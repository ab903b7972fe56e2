"""Whether the clock is kept by a time server, and by which program. What time it is goes with every answer."""

from __future__ import annotations

import ctypes
import re

from glmforge_ops.health.checks.probes.reading import run

_STATUS_AT, _UNSYNCHRONISED = 40, 0x40


def gather(cluster: dict) -> dict:
    tracking = run("chronyc", "-n", "tracking")
    if tracking is not None:
        normal = re.search(r"Leap status\s*:\s*(.+)", tracking)
        offset = re.search(r"System time\s*:\s*([\d.]+) seconds", tracking)
        kept = normal is not None and normal.group(1).strip() != "Not synchronised"
        return {"by": "chrony", "synchronised": kept, "offset": float(offset.group(1)) if offset else None}
    variables = run("ntpq", "-c", "rv")
    if variables is not None:
        offset = re.search(r"\boffset=(-?[\d.]+)", variables)
        seconds = abs(float(offset.group(1))) / 1000 if offset else None
        return {"by": "ntp", "synchronised": "leap_alarm" not in variables, "offset": seconds}
    answer = run("timedatectl", "show", "-p", "NTPSynchronized", "--value")
    if answer is not None and answer.strip() in ("yes", "no"):
        return {"by": "systemd-timesyncd", "synchronised": answer.strip() == "yes", "offset": None}
    return {"by": "the kernel", "synchronised": _kernel_says(), "offset": None}


def _kernel_says() -> bool | None:
    """From adjtimex(2), which changes nothing if it is asked to change nothing."""
    buffer = ctypes.create_string_buffer(256)
    try:
        if ctypes.CDLL(None).adjtimex(buffer) < 0:
            return None
    except (AttributeError, OSError):
        return None
    return not int.from_bytes(buffer.raw[_STATUS_AT : _STATUS_AT + 4], "little") & _UNSYNCHRONISED
