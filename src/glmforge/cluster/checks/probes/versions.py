"""Versions: of the machine, of its driver, and of what the Python that runs jobs there would import."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess

from glmforge.cluster.checks.probes.reading import read_text, run

_PACKAGES = ("torch", "glmforge", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
# torch itself is not imported: that takes seconds, and memory on a GPU.
_ASK = r"""
import importlib.metadata, importlib.util, json, os, re, sys
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = importlib.metadata.version(name)
    except Exception:  # whatever is wrong with its metadata, it is not installed as it should be
        packages[name] = None
cuda = None
found = importlib.util.find_spec("torch")
if found is not None and found.origin:
    try:
        with open(os.path.join(os.path.dirname(found.origin), "version.py")) as file:
            match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)", file.read(), re.M)
            cuda = match.group(1) if match else None
    except OSError:
        pass
python = "%d.%d.%d" % sys.version_info[:3]
print("\n" + json.dumps({"python": python, "packages": packages, "torch_cuda": cuda}))
"""


def gather(cluster: dict) -> dict:
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)', read_text("/etc/os-release") or "", re.MULTILINE))
    return {
        "kernel": read_text("/proc/sys/kernel/osrelease"),
        "os": " ".join(system[key] for key in ("ID", "VERSION_ID") if key in system) or None,
        "glibc": _glibc(),
        "driver": _driver(),
        **_python(cluster),
    }


def _glibc() -> str | None:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2] or None
    except (OSError, ValueError):
        return None


def _driver() -> str | None:
    version = read_text("/sys/module/nvidia/version")
    if version is None:
        found = re.search(r"Kernel Module[^\d]*([\d.]+)", read_text("/proc/driver/nvidia/version") or "")
        version = found.group(1) if found else None
    if version is None:
        lines = (run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "").split()
        version = lines[0] if lines else None
    return version


def _python(cluster: dict) -> dict:
    """What the interpreter of jobs says; "python_error" if it does not run."""
    names = [*_PACKAGES, *(cluster.get("expected") or {})]
    nothing = {"python": None, "packages": None, "torch_cuda": None}
    try:
        command = [*shlex.split(cluster.get("python") or "python3"), "-c", _ASK, *names]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=15, check=False)
        lines = ended.stdout.decode(errors="replace").strip().splitlines()
        if ended.returncode == 0 and lines:
            return dict(json.loads(lines[-1]), python_error=None)
        reason = (ended.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = str(error)
    return dict(nothing, python_error=reason[:300])
