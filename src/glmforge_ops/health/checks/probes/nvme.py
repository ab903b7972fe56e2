"""Health of NVMe disks: what they say of themselves."""

import json
import os
import shutil
import subprocess

_SYSTEM = "/sys/class/nvme"
_LIMIT_S = 10


def gather(cluster: dict) -> dict:
    names = sorted(os.listdir(_SYSTEM)) if os.path.isdir(_SYSTEM) else []
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    tool = next((name for name in ("nvme", "smartctl") if shutil.which(name, path=path)), None)
    return {"tool": tool, "disks": [_disk(name, shutil.which(tool, path=path) if tool else None) for name in names]}


def _disk(name: str, tool: "str | None") -> dict:
    disk = {"name": name, "model": _read(name, "model"), "state": _read(name, "state"), "error": None}
    disk.update({"used_percent": None, "spare_percent": None, "critical": None, "media_errors": None})
    if tool is None:
        return disk
    try:
        log = smart_log("/dev/" + name, tool)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        disk["error"] = str(error)
        return disk
    disk.update(of_log(log))
    return disk


def smart_log(device: str, tool: str) -> dict:
    is_nvme = os.path.basename(tool) == "nvme"
    command = [tool, "smart-log", "-o", "json", device] if is_nvme else [tool, "-a", "-j", device]
    done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
    try:
        log = json.loads(done.stdout.decode(errors="replace"))
    except ValueError:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise ValueError(said[-1] if said else f"{os.path.basename(tool)} printed nothing") from None
    return log.get("nvme_smart_health_information_log", log)


def of_log(log: dict) -> dict:
    """nvme-cli before 2.0 writes percent_used, later ones percentage_used; a critical warning is a number or an object
    whose value is one."""
    critical = log.get("critical_warning")
    if isinstance(critical, dict):
        critical = critical.get("value")
    return {
        "used_percent": _first(log, "percent_used", "percentage_used"),
        "spare_percent": _first(log, "avail_spare", "available_spare"),
        "spare_least_percent": _first(log, "spare_thresh", "available_spare_threshold"),
        "critical": critical,
        "media_errors": log.get("media_errors"),
    }


def _first(log: dict, *names: str) -> "object":
    return next((log[name] for name in names if name in log), None)


def _read(name: str, what: str) -> "str | None":
    try:
        with open(os.path.join(_SYSTEM, name, what), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
