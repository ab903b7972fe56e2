"""Versions: of the machine, of its driver, and of what the Python that runs jobs there would import."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess

from glmforge_ops.health.checks.probes.reading import read_text, run

_PACKAGES = ("torch", "glmforge", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
# torch itself is not imported: that takes seconds, and memory on a GPU. Nor is importlib.metadata, which takes several
# times as long as Python's start; whatever is wrong with a package's metadata, it is not installed as it should be.
_ASK = r"""
import os, sys
def normal(name):
    return name.lower().replace("-", "_").replace(".", "_")
def version(folder, entry):
    for file in (os.path.join(entry, "METADATA"), os.path.join(entry, "PKG-INFO"), entry):
        try:
            with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line[:8].lower() == "version:":
                        return quoted(line[8:].strip())
                    if not line.strip():
                        return "null"
        except OSError:
            pass
    return "null"
def quoted(text):
    return '"%s"' % "".join(c for c in text if "!" <= c <= "~" and c not in (chr(34), chr(92))) if text else "null"
def cuda():
    for finder in sys.meta_path:
        found = getattr(finder, "find_spec", lambda *_: None)("torch", None)
        if found is not None and found.origin:
            break
    else:
        return "null"
    try:
        with open(os.path.join(os.path.dirname(found.origin), "version.py"), errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition("=")
                value = value.strip()
                if name.partition(":")[0].strip() == "cuda" and value[:1] in ("'", chr(34)):
                    return quoted(value[1:].partition(value[0])[0])
    except OSError:
        pass
    return "null"
versions = {}
for folder in sys.path:
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        continue
    for entry in entries:
        stem, _, end = entry.rpartition(".")
        name = normal(stem.partition("-")[0])
        if end in ("dist-info", "egg-info") and name not in versions:
            versions[name] = folder, entry
packages = ", ".join(
    '"%s": %s' % (name, version(*versions[normal(name)]) if normal(name) in versions else "null")
    for name in sys.argv[1:]
)
print('\n{"python": "%d.%d.%d", "packages": {' % sys.version_info[:3] + packages + '}, "torch_cuda": ' + cuda() + "}")
"""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


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
    names = [name for name in [*_PACKAGES, *(cluster.get("expected") or {})] if _NAME.fullmatch(name)]
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
