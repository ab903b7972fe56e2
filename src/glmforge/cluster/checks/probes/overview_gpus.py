"""GPUs by NVML, the driver's own library, else by nvidia-smi. Apart from the rest: a broken GPU makes both hang."""

import ctypes
import pwd
import re
import subprocess
from pathlib import Path

_LIBRARY = "libnvidia-ml.so.1"
_FIELDS = "name,memory.total,memory.used,utilization.gpu,temperature.gpu,ecc.errors.uncorrected.volatile.total"


def gather(cluster: dict) -> dict:
    files = [name for name in _names("/dev") if re.match(r"nvidia\d+$", name)]
    facts: dict = {"device_files": len(files), "driver": None, "cuda": None, "by": None, "gpus": [], "problem": None}
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        return dict(facts, **_by_command())
    try:
        return dict(facts, by="NVML", **_by_nvml(nvml))
    except _NvmlError as error:
        return dict(facts, by="NVML", problem=str(error))


class _NvmlError(Exception):
    pass


def _call(nvml: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        function = getattr(nvml, name)
    except AttributeError:
        raise _NvmlError(f"{name} is not in this driver's library") from None
    status = function(*arguments)
    if status:
        raise _NvmlError(f"{name}: error {status}")


def _by_nvml(nvml: ctypes.CDLL) -> dict:
    _call(nvml, "nvmlInit_v2")
    count = ctypes.c_uint()
    _call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    cuda = ctypes.c_int()
    version = _or_none(nvml, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
    return {
        "driver": _string(nvml, "nvmlSystemGetDriverVersion"),
        "cuda": f"{cuda.value // 1000}.{cuda.value % 1000 // 10}" if version else None,
        "gpus": [_gpu(nvml, index) for index in range(count.value)],
    }


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    ]


def _gpu(nvml: ctypes.CDLL, index: int) -> dict:
    handle = ctypes.c_void_p()
    try:
        _call(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    except _NvmlError as error:  # a GPU that has fallen off the bus: the others are told all the same
        return dict(_NOTHING, index=index, problem=str(error))
    memory, rates, temperature, errors = _Memory(), _Rates(), ctypes.c_uint(), ctypes.c_ulonglong()
    has_memory = _or_none(nvml, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    has_rates = _or_none(nvml, "nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
    has_heat = _or_none(nvml, "nvmlDeviceGetTemperature", handle, ctypes.c_uint(0), ctypes.byref(temperature))
    has_errors = _or_none(
        nvml, "nvmlDeviceGetTotalEccErrors", handle, ctypes.c_uint(1), ctypes.c_uint(0), ctypes.byref(errors)
    )
    return {
        "index": index,
        "name": _string(nvml, "nvmlDeviceGetName", handle),
        "memory": memory.total if has_memory else None,
        "memory_used": memory.used if has_memory else None,
        "busy_percent": rates.gpu if has_rates else None,
        "celsius": temperature.value if has_heat else None,
        "ecc_errors": errors.value if has_errors else None,
        "processes": _processes(nvml, handle),
        "problem": None,
    }


_NOTHING = dict.fromkeys(("name", "memory", "memory_used", "busy_percent", "celsius", "ecc_errors"), None)
_NOTHING["processes"] = []


def _or_none(nvml: ctypes.CDLL, name: str, *arguments: object) -> bool:
    """Whether the device, and this version of the library, could tell."""
    try:
        _call(nvml, name, *arguments)
    except _NvmlError:
        return False
    return True


def _string(nvml: ctypes.CDLL, name: str, *arguments: object) -> "str | None":
    buffer = ctypes.create_string_buffer(96)
    return (
        buffer.value.decode(errors="replace") if _or_none(nvml, name, *arguments, buffer, ctypes.c_uint(96)) else None
    )


def _processes(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> list:
    rows = (_Process * 64)()
    count = ctypes.c_uint(64)
    if not _or_none(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), rows):
        return []
    return [_process(row.pid) for row in rows[: min(count.value, 64)]]


def _process(pid: int) -> dict:
    try:
        user = pwd.getpwuid(Path("/proc", str(pid)).stat().st_uid).pw_name
    except (OSError, KeyError):
        user = None
    return {"pid": pid, "user": user}


def _by_command() -> dict:
    command = ["nvidia-smi", "--query-gpu=driver_version," + _FIELDS, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError:
        return {}
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        lines = (done.stderr.decode(errors="replace") or text).strip().splitlines()
        return {"by": "nvidia-smi", "problem": "nvidia-smi: " + (lines[-1] if lines else f"status {done.returncode}")}
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 6]
    gpus = [_row(index, row) for index, row in enumerate(rows)]
    return {"by": "nvidia-smi", "driver": rows[0][0] if rows else None, "gpus": gpus}


def _row(index: int, row: list) -> dict:
    total, used, busy, heat, errors = (float(cell) if re.match(r"\d+(\.\d+)?$", cell) else None for cell in row[2:])
    return {
        "index": index,
        "name": row[1],
        "memory": None if total is None else total * (1 << 20),
        "memory_used": None if used is None else used * (1 << 20),
        "busy_percent": busy,
        "celsius": heat,
        "ecc_errors": errors,
        "processes": [],
        "problem": None,
    }


def _names(path: str) -> list:
    try:
        return [entry.name for entry in Path(path).iterdir()]
    except OSError:
        return []
