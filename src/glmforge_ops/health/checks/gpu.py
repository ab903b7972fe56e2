"""GPUs and the links between them: all there, the same everywhere, and neither broken, slowed down nor taken.

The driver is asked through nvidia-ml-py where the node's Python or that of the jobs has it, otherwise through
nvidia-smi, which tells less: what is not told is skipped.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any

from glmforge_ops.health.checks.check import (
    NONSENSE,
    Context,
    Facts,
    Outcome,
    Session,
    act,
    alike,
    failed,
    judge,
    judge_each,
    passed,
    rule,
    skipped,
    unknown,
    warning,
)  # fmt: skip
from glmforge_ops.health.checks.machine import UNREADABLE, kernel_log, recent
from glmforge_ops.health.checks.node import call, command_of, first_number, is_orphan, is_service, names_in, run

_GIB = 1 << 30
_SMI = {"name": "name", "temperature": "temperature.gpu", "memory_used": "memory.used", "memory_total": "memory.total",
        "utilization": "utilization.gpu", "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total"}  # fmt: skip
_UNKNOWN = dict.fromkeys(("temperature_memory", "power", "clock", "application_clock", "persistence", "ecc", "rows",
                          "throttle", "processes", "links"))  # fmt: skip
_SLOWED = {0x08: "hardware", 0x20: "temperature", 0x40: "hardware temperature", 0x80: "the power supply"}


def gpus(cluster: Facts) -> dict[str, Any]:
    """What is known of each GPU; "error" says why nothing is."""
    nvml = _pynvml(cluster["python"])
    if nvml is None:
        return _smi()
    try:
        nvml.nvmlInit()
        found = [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        driver, cuda = (_asker(nvml, f"nvmlSystemGet{name}Version")() for name in ("Driver", "CudaDriver"))
        return {"error": None, "driver": driver, "cuda": cuda, "gpus": found}
    except nvml.NVMLError as error:
        return {"error": f"NVML: {error}", "driver": None, "cuda": None, "gpus": []}


def _pynvml(python: str) -> Any:
    """nvidia-ml-py of this Python, or else of the one that runs jobs: it is a single file. None: there is none."""
    if sys.flags.no_site:  # this Python was started without its packages
        importlib.import_module("site").main()
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        where = run(python, "-c", "import pynvml; print(pynvml.__file__)") or "/nonexistent/x"
        sys.path.append(os.path.dirname(where.strip()))
    try:
        return importlib.import_module("pynvml")
    except ImportError:
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
    (field,) = ask("FieldValues", [nvml.NVML_FI_DEV_MEMORY_TEMP]) or [None]
    reasons = ask("CurrentClocksEventReasons")
    reasons = ask("CurrentClocksThrottleReasons") if reasons is None else reasons
    links = [ask("NvLinkState", link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    now, most = ask("ClockInfo", nvml.NVML_CLOCK_SM), ask("MaxClockInfo", nvml.NVML_CLOCK_SM)
    kind = nvml.NVML_CLOCK_GRAPHICS
    return {
        "index": index,
        "lost": False,
        "name": ask("Name"),
        "temperature": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "temperature_memory": field.value.uiVal or None if field is not None and field.nvmlReturn == 0 else None,
        "power": _share(ask("EnforcedPowerLimit"), ask("PowerManagementDefaultLimit")),
        "clock": 1.0 if busy is None or busy.gpu < 90 else _share(now, most),
        "application_clock": _share(ask("ApplicationsClock", kind), ask("DefaultApplicationsClock", kind)),
        "utilization": busy.gpu if busy else None,
        "memory_total": used.total if used else None,
        "memory_used": used.used if used else None,
        "persistence": {0: "off", 1: "on"}.get(ask("PersistenceMode")),
        "ecc": {0: "off", 1: "on"}.get(ecc[0]) if ecc else None,
        "ecc_uncorrected": ask("TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "rows": {"remapped": rows[1], "pending": rows[2], "failed": rows[3]} if rows else None,
        "throttle": None if reasons is None else [name for bit, name in _SLOWED.items() if reasons & bit],
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


def _smi() -> dict[str, Any]:
    query = f"--query-gpu=driver_version,{','.join(_SMI.values())}"
    status, printed, said = call("nvidia-smi", query, "--format=csv,noheader,nounits")
    rows = [line.split(", ") for line in printed.splitlines() if line.count(", ") == len(_SMI)]
    if status != 0 or not rows:
        return {"error": said or "nvidia-smi tells nothing", "driver": None, "cuda": None, "gpus": []}
    found: list[dict[str, Any]] = []
    for index, (_, name, *cells) in enumerate(rows):
        numbers = [first_number(cell) if cell[:1].isdigit() else None for cell in cells]
        values = dict(zip(list(_SMI)[1:], numbers, strict=True))
        mib = {key: values[key] for key in ("memory_used", "memory_total")}
        values |= {key: value * (1 << 20) for key, value in mib.items() if value is not None}
        found.append({**_UNKNOWN, "index": index, "lost": False, "name": name, **values})
    return {"error": None, "driver": rows[0][0], "cuda": None, "gpus": found}


def topology(cluster: Facts) -> dict[str, Any]:
    """Ways between GPUs and network cards by kind, whatever order they are numbered in: "GPU-GPU NV18 x 56"."""
    lines = [
        re.sub(r"\x1b\[[\d;]*m", "", line).split() for line in (run("nvidia-smi", "topo", "-m") or "").splitlines()
    ]
    columns = next((cells for cells in lines if cells[:1] == ["GPU0"] and "CPU" in cells), [])
    columns = [name for name in columns if re.fullmatch(r"(GPU|NIC)\d+", name)]
    ways = [
        f"{cells[0][:3]}-{to[:3]} {by}"
        for cells in lines if cells and cells[0] in columns and "CPU" not in cells
        for to, by in zip(columns, cells[1:], strict=False) if by != "X"
    ]  # fmt: skip
    return {"ways": ", ".join(f"{way} x {ways.count(way)}" for way in sorted(set(ways))) or None}


def diagnose(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """What NVIDIA's own diagnosis of medium length says: names of tests that failed."""
    status, printed, said = call("dcgmi", "diag", "-r", "2", "-j", limit_s=600.0)
    if status is None:
        return {"failed": None}
    if "{" not in printed:
        raise ValueError(f"dcgmi: {said or status}")
    return {"failed": sorted(set(_failing(json.loads(printed[printed.index("{") :]), "")))}


def _failing(told: Any, name: str) -> list[str]:
    """Its JSON nests tests in other ways with each version; each has a name, and results with a status below it."""
    if isinstance(told, list):
        return [each for inner in told for each in _failing(inner, name)]
    if not isinstance(told, dict):
        return []
    name = told.get("name", name)
    own = [name] if str(told.get("status", "")).lower() == "fail" else []
    return own + [each for inner in told.values() for each in _failing(inner, name)]


@judge("gpu.count", "quick", gpus, "GPUs of a node, none of them lost")
def count(facts: Facts, context: Context) -> Outcome:
    """As many as the cluster says, and none that fell off its bus."""
    expected, found = context.cluster.gpus_per_node, facts["gpus"]
    lost = [f"GPU {gpu['index']}" for gpu in found if gpu["lost"]]
    threshold = f"{expected} GPUs (gpus_per_node)"
    if lost:
        fix = "drain the node, power it off and on again"
        return failed(f"{', '.join(lost[:8])} cannot be reached on the bus", threshold, fix)
    if len(found) == expected:
        return passed(f"{expected} GPUs", threshold) if expected else skipped("the cluster has no GPUs")
    value = f"{len(found)} of {expected} GPUs" + (f" ({facts['error']})" if facts["error"] else "")
    fix = "compare 'lspci -d 10de:' with 'nvidia-smi -L'; or correct gpus_per_node in cluster.yaml"
    return failed(value, threshold, fix)


def _models(facts: Facts, context: Context) -> str | None:
    return " and ".join(sorted({gpu["name"] or "?" for gpu in facts["gpus"] if not gpu["lost"]})) or None


def _present(facts: Facts, context: Context) -> dict[str, Facts]:
    return {f"GPU {gpu['index']}": gpu for gpu in facts["gpus"] if not gpu["lost"]}


def _rows(gpu: Facts, context: Context) -> str | None:
    rows = gpu["rows"]
    return None if rows is None else "failed" if rows["failed"] else "waits for a reset" if rows["pending"] else "none"


def _throttled(gpu: Facts, context: Context) -> str | None:
    return None if gpu["throttle"] is None else "slowed by " + ", ".join(gpu["throttle"]) if gpu["throttle"] else "no"


def _links(gpu: Facts, context: Context) -> Any:
    """Links that are up, of as many as the model has."""
    if gpu["links"] is None or not (gpu["links"] or context.find("nvlink-links", gpu["name"] or "")):
        return skipped("not reported" if gpu["links"] is None else "no NVLink")
    return f"{gpu['links'].count(1)} links up"


def _all_links(gpu: Facts, context: Context) -> str:
    row = context.find("nvlink-links", gpu["name"] or "")
    return f"{len(gpu['links']) if row is None else row.value:g} links up"


# fmt: off
_EACH: dict[str, Any] = {"each": _present, "none": "no GPU was found"}
alike("gpu.model", "quick", gpus, "the same model of GPU on all nodes", _models,
      "take the node out of this cluster; the others have {expected}", "no GPU was found")
rule("gpu.ecc", "quick", gpus, "memory errors that could not be corrected", "ecc_uncorrected", want=0, bad=failed,
     fix="drain the node and reset the GPU; if it comes again, run 'dcgmi diag -r 3' and have it replaced", **_EACH)
rule("gpu.ecc-mode", "quick", gpus, "ECC is on", "ecc", want="on", fix="'nvidia-smi -e 1', then reset the GPU", **_EACH)
rule("gpu.remapped-rows", "quick", gpus, "rows of GPU memory that must be replaced", _rows, want="none", bad=failed,
     fix="drain the node, then 'nvidia-smi --gpu-reset'; have the GPU replaced if a row could not be remapped", **_EACH)
rule("gpu.remapped-count", "quick", gpus, "rows of GPU memory that were replaced",
     lambda gpu, _: gpu["rows"] and gpu["rows"]["remapped"], most="gpu-remapped-rows",
     fix="run 'dcgmi diag -r 3'; have it replaced if that fails", **_EACH)
rule("gpu.throttle", "quick", gpus, "clocks lowered by heat or lack of power", _throttled, want="no", bad=failed,
     fix="check power supplies, cables, fans and filters; 'nvidia-smi -q -d PERFORMANCE' tells more", **_EACH)
rule("gpu.clocks", "quick", gpus, "application clocks that somebody lowered", "application_clock", least="gpu-settings",
     fix="'nvidia-smi --reset-applications-clocks' and '--reset-gpu-clocks'", **_EACH)
rule("gpu.busy-clock", "quick", gpus, "clock of a busy GPU", "clock", least="gpu-busy-clock",
     fix="look at 'nvidia-smi -q -d CLOCK,POWER': a lower power limit or locked clocks", **_EACH)
rule("gpu.temperature", "quick", gpus, "temperature of the GPU", "temperature", most="gpu-temperature",
     fix="check fans, filters, the air that comes in, and what the rack's neighbours blow out", **_EACH)
rule("gpu.memory-temperature", "quick", gpus, "temperature of its memory", "temperature_memory",
     most="gpu-memory-temperature", fix="check fans, filters and the air that comes in", **_EACH)
rule("gpu.power", "quick", gpus, "power limit that somebody lowered", "power", least="gpu-settings",
     fix="'nvidia-smi -pl WATTS' with the card's own limit, unless it was lowered on purpose", **_EACH)
rule("gpu.persistence", "quick", gpus, "persistence mode; without it every start takes seconds", "persistence",
     want="on", fix="start nvidia-persistenced, or 'nvidia-smi -pm 1'", **_EACH)
rule("nvlink.links", "quick", gpus, "NVLink links that are up", _links, want=_all_links, bad=failed,
     fix="look at 'nvidia-smi nvlink -e' and the fabric manager ('systemctl status nvidia-fabricmanager')", **_EACH)
alike("nvlink.topology", "standard", topology, "GPUs and network cards joined the same way",
      lambda facts, _: facts["ways"],
      "compare 'nvidia-smi topo -m' with another node's: a card in another slot, or a link that is down")
# fmt: on


@judge("gpu.processes", "quick", gpus, "what ended jobs left on a GPU", **_EACH)
def left_over(gpu: Facts, context: Context) -> Outcome:
    """A process whose launcher lives is a job's."""
    found, used, threshold = gpu["processes"], gpu["memory_used"], "no process of an ended job"
    if found is None or used is None:
        return skipped("processes are not reported")
    stale = [process for process in found if process["orphan"]]
    if stale:
        pids = " ".join(f"{process['pid']:d}" for process in stale[:50])
        return failed(f"held by {stale[0]['command']} of an ended job (pid {pids})", threshold, f"end it: kill {pids}")
    if not found and used > context.limit("gpu-memory-held") * _GIB:
        fix = "'fuser -v /dev/nvidia*' as root names it; if nothing does, 'nvidia-smi --gpu-reset'"
        return failed(f"{used / _GIB:.1f} GiB are taken, and no process is named", threshold, fix)
    return passed(f"in use by pid {found[0]['pid']:d}" if found else "free", threshold)


@act("gpu.diagnostics", "thorough", None, "NVIDIA's own diagnosis, where DCGM is installed")
def diagnostics(session: Session) -> dict[str, Outcome]:
    """It takes two minutes or so, on GPUs that nobody uses."""
    if session.context.cluster.gpus_per_node == 0:
        return session.everywhere(skipped("the cluster has no GPUs"))

    def judge_diagnosis(host: str, facts: Facts) -> Outcome:
        if facts["failed"] is None:
            return skipped("dcgmi is not installed", "install NVIDIA's DCGM")
        value, fix = f"failed: {', '.join(facts['failed'][:4])}", "run 'dcgmi diag -r 3' there"
        return failed(value, "no test fails", fix) if facts["failed"] else passed("no test fails")

    return judge_each(session.ask(diagnose, {host: {} for host in session.hosts}, 620.0), judge_diagnosis)


_OF_APPLICATIONS = frozenset({8, 11, 13, 31, 43, 45, 68, 69, 137})
"""Raised by a program's own mistake, or after another error ended it."""
_BROKEN = {
    46: "the GPU stopped", 48: "an uncorrectable memory error", 62: "the GPU's own controller stopped",
    63: "a row of memory was remapped", 64: "a row of memory could not be remapped", 74: "an NVLink error",
    79: "the GPU fell off the bus", 92: "many corrected memory errors", 94: "a memory error, contained in one program",
    95: "a memory error that may have spread", 109: "a context switch that did not end",
    119: "the GPU's system processor does not answer", 120: "an error of the GPU's system processor",
    136: "an NVLink that does not come up", 140: "an uncorrectable memory error", 143: "a GPU that does not start",
    149: "an NVLink error of the network", 155: "an NVLink that does not train",
}  # fmt: skip
_RESET = "drain the node and reset the GPU, or reboot; for NVLink look at 'nvidia-smi nvlink -e' and the fabric manager"
_REPLACE = "drain the node, power it off and on, and report it"


@judge("gpu.xid", "quick", kernel_log, "errors of GPUs in the kernel's log")
def xid(facts: Facts, context: Context) -> Outcome:
    """None of the last hours that hardware or driver raised; programs raise some themselves."""
    if context.cluster.gpus_per_node == 0 or not facts["readable"]:
        return UNREADABLE if context.cluster.gpus_per_node else skipped("the cluster has no GPUs")
    threshold = f"none of hardware within {context.limit('kernel-log-hours'):g} hours"
    events = (event["words"] for event in recent("xids", facts, context))
    found = sorted({(gpu, int(number)) for gpu, number in events if int(number) not in _OF_APPLICATIONS})
    told = "; ".join(f"Xid {number} on {gpu}: {_BROKEN.get(number, 'unknown')}" for gpu, number in found[:4])
    broken = {number for _, number in found} & _BROKEN.keys()
    if broken:
        return failed(told, threshold, _REPLACE if broken & {64, 79, 143} else _RESET)
    return warning(told, threshold, "look it up in NVIDIA's Xid catalog") if found else passed("none", threshold)


@act("nccl.bandwidth", "thorough", gpus, "all-reduce of 1 GiB among the GPUs of each node")
def nccl(session: Session) -> dict[str, Outcome]:
    """By `glmforge cluster bench` on all nodes at once, since the links of one do not concern the others."""
    names: dict[str, list[str]] = {}

    def count_gpus(host: str, facts: Facts) -> Outcome:
        names[host] = [gpu["name"] or "GPU" for gpu in facts["gpus"] if not gpu["lost"]]
        return skipped("fewer than two GPUs were found")

    outcomes = judge_each(session.known(gpus), count_gpus)
    python = shlex.quote(session.context.cluster.python)
    scripts = {
        host: f"f=$(mktemp) && {python} -m glmforge cluster bench --local {len(of_host)} --backend nccl --collective "
        'all_reduce --min-bytes 1G --max-bytes 1G --json "$f" >&2; s=$?; cat "$f"; rm -f "$f"; exit $s'
        for host, of_host in names.items()
        if len(of_host) > 1
    }
    for host, answer in session.shell(scripts, 300.0).items() if scripts else ():
        outcomes[host] = _judge_bench(answer, names[host][0], session.context)
    return outcomes


def _judge_bench(answer: Any, model: str, context: Context) -> Outcome:
    row = context.find("allreduce-bus-bandwidth", model)
    threshold = "" if row is None else f"at least {row.value:g} {row.unit} ({model})"
    try:
        (result,) = json.loads(answer.stdout)["rows"]
        busbw, wrong = float(result["busbw"]), int(result["wrong"])
    except NONSENSE as error:
        reason = unknown(answer.reason or error).value
        return failed(f"did not run: {reason}", threshold, "run 'glmforge cluster bench --local 2' there")
    if wrong:
        return failed(f"{wrong} elements of the sum are wrong", "none wrong", "drain the node: its GPUs or links fail")
    if row is None:
        return skipped(f"{busbw:.4g} GB/s; no limit is known for {model}", "set thresholds: allreduce-bus-bandwidth")
    fix = "see nvlink.links, nvlink.topology and pcie.width; then 'glmforge cluster bench' there, with NCCL_DEBUG=INFO"
    ok = busbw >= row.value
    return passed(f"{busbw:.4g} GB/s", threshold) if ok else failed(f"{busbw:.4g} GB/s", threshold, fix)
