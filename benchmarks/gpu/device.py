"""On what was measured: versions, the device, and its clocks as they are. Nothing here changes a setting."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

LIBRARIES = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "safetensors",
    "tokenizers",
    "pydantic",
    "liger-kernel",
    "torchao",
    "flash-attn",
)
_CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")


def describe(device: torch.device) -> dict[str, Any]:
    """Date, versions and the device; JSON."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "device": _gpu(device) if device.type == "cuda" else {"name": "cpu", "cpu": platform.machine()},
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {"torch": torch.__version__, "cuda": str(torch.version.cuda)}


def _gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": total,
        "free_bytes": free,
        "l2_bytes": properties.L2_cache_size,
        "driver": (query("driver_version") or [None])[0],
    }


def clocks() -> dict[str, str] | None:
    """Clocks (MHz), power (W) and temperature (C) now; None without `nvidia-smi`."""
    answer = query(*_CLOCKS)
    return answer and dict(zip(_CLOCKS, answer, strict=True))


def query(*fields: str) -> list[str] | None:
    """What `nvidia-smi` answers for the first GPU; None where it does not run or knows a field by another name."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return [word.strip() for word in answer.splitlines()[0].split(",")]
