"""GPUs and the links between them: all there, the same everywhere, and neither broken, slowed down nor taken.

The driver is asked through nvidia-ml-py, of the node's Python or that of the jobs. Without it GPUs are counted in
`/dev`, and all else about them is skipped.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

from glmforge_ops.health.checks.check import (
    Context,
    Facts,
    Outcome,
    alike,
    failed,
    held,
    passed,
    rule,
    skipped,
    warning,
)
from glmforge_ops.health.checks.machine import GIB, UNREADABLE, kernel_log, recent
from glmforge_ops.health.checks.node import call, command_of, is_orphan, is_service, last_line, names_in, run

_KEYS = ("name", "temperature", "power", "application_clock", "utilization", "memory_total", "memory_used",
         "persistence", "ecc", "ecc_uncorrected", "rows", "throttle", "processes", "links")  # fmt: skip
_SLOWED = {0x08: "hardware", 0x20: "temperature", 0x40: "hardware temperature", 0x80: "the power supply"}


def gpus(cluster: Facts) -> dict[str, Any]:
    """What is known of each GPU; "error" says why nothing is."""
    nvml = _pynvml(cluster["python"])
    if nvml is None:
        found = [{**dict.fromkeys(_KEYS), "index": index, "lost": False} for index in range(_count_devices())]
        return {"error": "nvidia-ml-py is not installed", "driver": None, "cuda": None, "gpus": found}
    try:
        nvml.nvmlInit()
        found = [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        driver, cuda = (_asker(nvml, f"nvmlSystemGet{name}Version")() for name in ("Driver", "CudaDriver"))
        return {"error": None, "driver": driver, "cuda": cuda, "gpus": found}
    except nvml.NVMLError as error:
        return {"error": f"NVML: {error}", "driver": None, "cuda": None, "gpus": []}


def _count_devices() -> int:
    return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names_in("/dev"))


def _pynvml(python: str) -> Any:
    """nvidia-ml-py of this Python, or else of the one that runs jobs: it is a single file. None: there is none."""
    if sys.flags.no_site:  # this Python was started without its packages
        importlib.import_module("site").main()
    for _ in range(2):
        try:
            return importlib.import_module("pynvml")
        except ImportError:
            where = run(python, "-c", "import pynvml; print(pynvml.__file__)") or "/nonexistent/x"
            sys.path.append(os.path.dirname(where.strip()))
    return None


def _asker(nvml: Any, name: str, *first: Any) -> Callable[..., Any]:
    """A function of the library that gives None for what the card, the driver or the library does not know."""

    def ask(*arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(*first, *arguments)
        except (AttributeError, nvml.NVMLError, nvml.NVMLLibraryMismatchError):
            return None

    return ask


def _device(nvml: Any, index: int) -> dict[str, Any]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return {"index": index, "lost": True}

    def ask(name: str, *arguments: Any) -> Any:
        return _asker(nvml, f"nvmlDeviceGet{name}", handle)(*arguments)

    used, busy, ecc, rows, pids = map(
        ask, ("MemoryInfo", "UtilizationRates", "EccMode", "RemappedRows", "ComputeRunningProcesses")
    )
    reasons = ask("CurrentClocksEventReasons")
    reasons = ask("CurrentClocksThrottleReasons") if reasons is None else reasons
    slowed = [name for bit, name in _SLOWED.items() if (reasons or 0) & bit]
    links = [ask("NvLinkState", link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    kind = nvml.NVML_CLOCK_GRAPHICS
    return {
        "index": index,
        "lost": False,
        "name": ask("Name"),
        "temperature": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "power": _share(ask("EnforcedPowerLimit"), ask("PowerManagementDefaultLimit")),
        "application_clock": _share(ask("ApplicationsClock", kind), ask("DefaultApplicationsClock", kind)),
        "utilization": busy.gpu if busy else None,
        "memory_total": used.total if used else None,
        "memory_used": used.used if used else None,
        "persistence": {0: "off", 1: "on"}.get(ask("PersistenceMode")),
        "ecc": {0: "off", 1: "on"}.get(ecc[0]) if ecc else None,
        "ecc_uncorrected": ask("TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "rows": None if not rows else "failed" if rows[3] else "waits for a reset" if rows[2] else "none",
        "throttle": None if reasons is None else ", ".join(slowed) or "no",
        "processes": None if pids is None else [_process(process.pid) for process in pids],
        "links": [link for link in links if link is not None],
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _process(pid: int) -> dict[str, Any]:
    """One of another container has a number and nothing else."""
    known = str(pid) in names_in("/proc")
    orphan = is_orphan(pid) and not is_service(pid) if known else None
    return {"pid": pid, "command": command_of(pid) if known else None, "orphan": orphan}


def topology(cluster: Facts) -> dict[str, Any]:
    """How often each kind of way joins GPUs and network cards, in whichever order they are numbered: "NV18 x 56"."""
    matrix = (run("nvidia-smi", "topo", "-m") or "").partition("Legend:")[0]
    ways = Counter(re.findall(r"\s(NV\d+|SYS|NODE|PHB|PXB|PIX)\b", matrix))
    return {"ways": ", ".join(f"{way} x {ways[way]}" for way in sorted(ways)) or None}


def diagnose(cluster: Facts) -> dict[str, Any]:
    """Tests that fail in NVIDIA's own diagnosis of medium length: two minutes or so, on GPUs that are free."""
    status, printed, said = call("dcgmi", "diag", "-r", "2", limit_s=600.0) if _count_devices() else (None, "", "")
    if status is None:
        return {"failed": None}
    failing = re.findall(r"^\|\s*([^|]+?)\s*\|\s*Fail", printed, re.MULTILINE)
    return {"failed": ", ".join(failing) or ("none" if status == 0 else said or f"status {status}")}


def all_reduce(cluster: Facts) -> dict[str, Any]:
    """An all-reduce of 1 GiB among the GPUs of the node, by `glmforge cluster bench`."""
    if (num := _count_devices()) < 2:
        return {"busbw": None}
    with tempfile.TemporaryDirectory() as folder:
        size = (
            "--min-bytes",
            "1G",
            "--max-bytes",
            "1G",
            "--collective",
            "all_reduce",
            "--json",
            f"{folder}/found.json",
        )
        command = (cluster["python"], "-m", "glmforge", "cluster", "bench", "--local", f"{num}", "--backend", "nccl")
        status, printed, said = call(*command, *size, limit_s=300.0)
        if not os.path.exists(f"{folder}/found.json"):
            raise ValueError(f"cluster bench: {said or last_line(printed) or status}")
        with open(f"{folder}/found.json") as file:
            found = json.load(file)
    if found["rows"][0]["wrong"]:
        raise ValueError(f"{found['rows'][0]['wrong']} elements of the sum are wrong")
    return {"device": found["device"], "busbw": found["rows"][0]["busbw"]}


def count(facts: Facts, context: Context) -> Outcome:
    """As many as the cluster says, and none that fell off its bus."""
    expected, found = context.cluster.gpus_per_node, facts["gpus"]
    lost = [f"GPU {gpu['index']}" for gpu in found if gpu["lost"]]
    threshold = f"{expected} GPUs (gpus_per_node)"
    if lost:
        fix = "drain the node, power it off and on again"
        return failed(f"{', '.join(lost[:8])} cannot be reached on the bus", threshold, fix)
    if not expected and not found:
        return skipped("the cluster has no GPUs")
    error = f" ({facts['error']})" if facts["error"] and len(found) != expected else ""
    fix = "compare 'lspci -d 10de:' with 'nvidia-smi -L'; or correct gpus_per_node in cluster.yaml"
    return held(len(found) == expected, f"{len(found)} of {expected} GPUs{error}", threshold, fix)


def _models(facts: Facts, context: Context) -> str | None:
    return " and ".join(sorted({gpu["name"] for gpu in facts["gpus"] if not gpu["lost"] and gpu["name"]})) or None


def _present(facts: Facts, context: Context) -> dict[str, Facts]:
    return {f"GPU {gpu['index']}": gpu for gpu in facts["gpus"] if not gpu["lost"]}


def _links(gpu: Facts, context: Context) -> Any:
    """Links that are up, of as many as the model has."""
    if gpu["links"] is None or not (gpu["links"] or context.thresholds.find("nvlink-links", gpu["name"] or "")):
        return skipped("not reported" if gpu["links"] is None else "no NVLink")
    return f"{gpu['links'].count(1)} links up"


def _all_links(gpu: Facts, context: Context) -> str:
    row = context.thresholds.find("nvlink-links", gpu["name"] or "")
    return f"{len(gpu['links']) if row is None else row.value:g} links up"


def left_over(gpu: Facts, context: Context) -> Outcome:
    """A process whose launcher lives is a job's."""
    found, used, threshold = gpu["processes"], gpu["memory_used"], "no process of an ended job"
    if found is None or used is None:
        return skipped("processes are not reported")
    stale = [process for process in found if process["orphan"]]
    if stale:
        pids = " ".join(f"{process['pid']:d}" for process in stale[:50])
        return failed(f"held by {stale[0]['command']} of an ended job (pid {pids})", threshold, f"end it: kill {pids}")
    if not found and used > context.limit("gpu-memory-held") * GIB:
        fix = "'fuser -v /dev/nvidia*' as root shows the process; if it shows none, 'nvidia-smi --gpu-reset'"
        return failed(f"{used / GIB:.1f} GiB are taken by an unknown process", threshold, fix)
    return passed(f"in use by pid {found[0]['pid']:d}" if found else "free", threshold)


_OF_APPLICATIONS = frozenset({8, 11, 13, 31, 43, 45, 68, 69, 137})
"""Xids that a program's own mistake raises, or that follow another error."""
_BROKEN = frozenset({46, 48, 62, 63, 64, 74, 79, 92, 94, 95, 109, 119, 120, 136, 140, 143, 149, 155})
"""Of hardware and driver; what is in neither set is a warning."""


def xid(facts: Facts, context: Context) -> Outcome:
    """None of the last hours that hardware or driver raised."""
    if context.cluster.gpus_per_node == 0 or not facts["readable"]:
        return UNREADABLE if context.cluster.gpus_per_node else skipped("the cluster has no GPUs")
    events = (event["words"] for event in recent("xids", facts, context))
    found = sorted({(int(number), gpu) for gpu, number in events if int(number) not in _OF_APPLICATIONS})
    value = ", ".join(f"Xid {number} on {gpu}" for number, gpu in found[:4]) or "none"
    is_broken = any(number in _BROKEN for number, _ in found)
    fix = "look it up in NVIDIA's Xid catalog" + ("; drain the node, and reset the GPU or reboot" if is_broken else "")
    threshold = f"none of hardware within {context.limit('kernel-log-hours'):g} hours"
    return held(not found, value, threshold, fix, failed if is_broken else warning)


# fmt: off
_EACH: dict[str, Any] = {"each": _present, "none": "no GPU was found", "absent": "not reported; is nvidia-ml-py there?"}
rule("gpu.count", "quick", gpus, "GPUs of a node, and whether one was lost", count)
rule("gpu.processes", "quick", gpus, "what ended jobs left on a GPU", left_over, **_EACH)
rule("gpu.xid", "quick", kernel_log, "errors of GPUs (Xid) in the kernel's log", xid)
alike("gpu.model", "quick", gpus, "the same model of GPU on all nodes", _models,
      "take the node out of this cluster; the others have {expected}", "no GPU was found")
rule("gpu.ecc", "quick", gpus, "memory errors that could not be corrected", "ecc_uncorrected", want=0, bad=failed,
     fix="drain the node and reset the GPU; if it comes again, run 'dcgmi diag -r 3' and have it replaced", **_EACH)
rule("gpu.ecc-mode", "quick", gpus, "ECC is on", "ecc", want="on", fix="'nvidia-smi -e 1', then reset the GPU", **_EACH)
rule("gpu.remapped-rows", "quick", gpus, "rows of GPU memory that must be replaced", "rows", want="none", bad=failed,
     fix="drain the node, then 'nvidia-smi --gpu-reset'; have the GPU replaced if a row could not be remapped", **_EACH)
rule("gpu.throttle", "quick", gpus, "clocks lowered by heat or lack of power", "throttle", want="no", bad=failed,
     fix="check power supplies, cables, fans and filters; 'nvidia-smi -q -d PERFORMANCE' shows more", **_EACH)
rule("gpu.clocks", "quick", gpus, "application clocks below the default", "application_clock", least="gpu-settings",
     fix="'nvidia-smi --reset-applications-clocks' and '--reset-gpu-clocks'", **_EACH)
rule("gpu.temperature", "quick", gpus, "temperature of the GPU", "temperature", most="gpu-temperature",
     fix="check fans, filters, and the temperature of the air that comes in", **_EACH)
rule("gpu.power", "quick", gpus, "power limit below the default", "power", least="gpu-settings",
     fix="'nvidia-smi -pl WATTS' with the card's own limit, unless it was lowered on purpose", **_EACH)
rule("gpu.persistence", "quick", gpus, "persistence mode; without it every start takes seconds", "persistence",
     want="on", fix="start nvidia-persistenced, or 'nvidia-smi -pm 1'", **_EACH)
rule("nvlink.links", "quick", gpus, "NVLink links that are up", _links, want=_all_links, bad=failed,
     fix="look at 'nvidia-smi nvlink -e' and the fabric manager ('systemctl status nvidia-fabricmanager')", **_EACH)
alike("nvlink.topology", "standard", topology, "GPUs and network cards joined the same way",
      lambda facts, _: facts["ways"], "compare 'nvidia-smi topo -m': a card in another slot, or a link that is down")
rule("gpu.diagnostics", "thorough", diagnose, "NVIDIA's own diagnosis, where DCGM is installed", "failed", want="none",
     bad=failed, fix="run 'dcgmi diag -r 3' there", absent="no GPUs, or dcgmi is not installed")
rule("nccl.bandwidth", "thorough", all_reduce, "all-reduce of 1 GiB among the GPUs of each node", "busbw",
     least="allreduce-bus-bandwidth", device="device", bad=failed, absent="fewer than two GPUs were found",
     fix="see nvlink.links and pcie.width; then 'glmforge cluster bench' there, with NCCL_DEBUG=INFO")
# fmt: on
