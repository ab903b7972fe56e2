"""GPUs: from the driver's library, or from `nvidia-smi` where that cannot be used."""

from __future__ import annotations

from glmforge_ops.health.checks.probes.nvidia_smi import smi_devices, smi_driver
from glmforge_ops.health.checks.probes.nvml import Nvml
from glmforge_ops.health.checks.probes.reading import command_of, is_orphan, is_service, names_in


def gather(cluster: dict) -> dict:
    facts = _from_library()
    for index, device in enumerate(facts["gpus"]):
        device["index"] = index
        pids = device.pop("pids", None)
        device["processes"] = None if pids is None else [_process(pid) for pid in pids]
    return facts


def _from_library() -> dict:
    try:
        nvml = Nvml()
        return {"error": None, "driver": nvml.driver(), "cuda": nvml.cuda(), "gpus": nvml.devices()}
    except OSError as error:
        reason = str(error)
    devices = smi_devices()
    if devices is not None:
        return {"error": None, "driver": smi_driver(), "cuda": None, "gpus": devices}
    return {"error": reason, "driver": None, "cuda": None, "gpus": []}


def _process(pid: int) -> dict:
    known = str(pid) in names_in("/proc")
    orphan = is_orphan(pid) and not is_service(pid) if known else None
    return {"pid": pid, "command": command_of(pid) if known else None, "orphan": orphan}
