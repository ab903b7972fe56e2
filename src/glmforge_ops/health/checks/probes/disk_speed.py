"""How fast the disk of a node's own is, by fio: a small file, some seconds, removed afterwards."""

import json
import os
import shutil
import subprocess
import tempfile

from glmforge_ops.health.checks.probes.paths import find_mount

_SIZE_MB, _SECONDS, _LIMIT_S = 256, 2, 15


def gather(cluster: dict) -> dict:
    path = cluster["local_path"]
    found = {"path": path, "has_fio": shutil.which("fio") is not None, "error": None, "source": None, "engine": None}
    found.update({"read": None, "write": None, "iops": None})
    if path is None or not found["has_fio"] or not os.path.isdir(path):
        return found
    mount = find_mount(path)
    found["source"] = mount["source"] if mount else None
    try:
        folder = tempfile.mkdtemp(prefix=".glmforge-check-", dir=path)
        try:
            _measure(folder, found)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
        found["error"] = str(error)
    return found


def _measure(folder: str, found: dict) -> None:
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < 2 * _SIZE_MB << 20:
        raise ValueError(f"there is no room for a file of {_SIZE_MB} MiB")
    file = os.path.join(folder, "file")
    found["write"] = rate(fio(file, "write", "1M"), "write", "bw_bytes")
    found["read"] = rate(fio(file, "read", "1M"), "read", "bw_bytes")
    found["iops"] = rate(fio(file, "randread", "4k"), "read", "iops")


def fio(file: str, kind: str, block: str) -> dict:
    """What fio says in JSON; past the page cache where the file system can do that."""
    for direct in ("1", "0"):
        command = [
            "fio",
            "--name=check",
            "--filename=" + file,
            f"--size={_SIZE_MB}M",
            "--rw=" + kind,
            "--bs=" + block,
        ]
        command += ["--ioengine=libaio", "--iodepth=32", "--direct=" + direct, f"--runtime={_SECONDS}"]
        command += ["--time_based", "--output-format=json"]
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
        if done.returncode == 0:
            break
    return parse(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def parse(text: str, said: str = "") -> dict:
    """fio may print notes before its JSON."""
    start = text.find("{")
    if start < 0:
        lines = (said or text).strip().splitlines()
        raise ValueError(lines[-1] if lines else "fio printed nothing")
    return json.loads(text[start:])


def rate(report: dict, direction: str, what: str) -> float:
    job = report["jobs"][0]
    if job["error"]:
        raise ValueError("fio: " + os.strerror(job["error"]))
    return float(job[direction][what])
