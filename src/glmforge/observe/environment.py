"""On what a run trained: the machine, the libraries, the code's revision and the memory in use.

Read from the operating system and from package metadata; the only program started is git. What cannot be
known is None or absent, never guessed.
"""

import hashlib
import math
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from glmforge.runtime.cores import usable_cores

LIBRARIES = (
    "glmforge",
    "torch",
    "numpy",
    "triton",
    "tokenizers",
    "transformers",
    "safetensors",
    "pydantic",
    "deepspeed",
    "flash-attn",
)


def describe_machine() -> dict[str, Any]:
    """CPU model, usable cores, bytes of physical memory, GPUs (name, bytes of memory), operating system."""
    return {
        "cpu": _cpu_model(),
        "cores": math.ceil(usable_cores()),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def library_versions(names: tuple[str, ...] = LIBRARIES) -> dict[str, str]:
    """Python's version and that of each named package that is installed."""
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_revision(path: str | os.PathLike[str]) -> str | None:
    """The commit checked out around `path`, with '-dirty' when tracked files differ from it.

    None where git has no answer: outside a repository, before the first commit, or without git installed.
    """
    command = ["git", "-C", os.fspath(path), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip()


def source_digest(package: Path) -> str:
    """SHA-256 of a package's Python files with their names, in hex: equal for equal code, installed or checked out."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def process_rss_bytes() -> int | None:
    """Resident memory of this process in bytes; None where the system has no /proc (macOS)."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _gpus() -> list[dict[str, Any]]:
    import torch  # costs seconds: only those who ask for GPUs pay

    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": gpu.name, "memory_bytes": gpu.total_memory} for gpu in properties]
