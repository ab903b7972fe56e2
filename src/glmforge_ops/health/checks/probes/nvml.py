"""GPUs as the driver's library tells of them, through ctypes: nothing needs to be installed but the driver.

Functions come and go with the driver's version: what one lacks is None, and the rest is told all the same.
"""

from __future__ import annotations

import ctypes
import os

LIBRARY = "GLMFORGE_PROBE_NVML"
"""Names another library, for tests."""

_UINT, _ULL, _INT = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_int
_MISMATCH = 18
_MAX_PROCESSES = 256
_MEMORY_TEMPERATURE = 82
_VOLATILE, _UNCORRECTED = 0, 1
_GRAPHICS, _SM = 0, 1
_SLOWDOWN = 1


class _Memory(ctypes.Structure):
    _fields_ = [("total", _ULL), ("free", _ULL), ("used", _ULL)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", _UINT), ("memory", _UINT)]


class _Process(ctypes.Structure):
    _fields_ = [("pid", _UINT), ("memory", _ULL), ("gpu_instance", _UINT), ("compute_instance", _UINT)]


class _Field(ctypes.Structure):
    _fields_ = [
        ("field", _UINT),
        ("scope", _UINT),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", _INT),
        ("status", _INT),
        ("value", _ULL),
    ]


class Nvml:
    """The library, started. Raises `OSError` if it is not there or does not start, saying why."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ.get(LIBRARY, "libnvidia-ml.so.1"))
        status = self._status("nvmlInit_v2")
        if status == _MISMATCH:
            raise OSError("the driver that runs and its libraries are of different versions: reboot")
        if status != 0:
            raise OSError(f"NVML does not start (error {status}): is the driver loaded?")

    def devices(self) -> list[dict]:
        """What is known of each GPU; of one that fell off its bus, that it is lost."""
        count = self._out("nvmlDeviceGetCount_v2", [], _UINT) or 0
        devices = []
        for index in range(count):
            handle = ctypes.c_void_p()
            status = self._status("nvmlDeviceGetHandleByIndex_v2", _UINT(index), ctypes.byref(handle))
            devices.append(self._device(handle) if status == 0 else {"lost": True})
        return devices

    def driver(self) -> str | None:
        return self._text("nvmlSystemGetDriverVersion", [], 80)

    def cuda(self) -> int | None:
        """The newest CUDA that the driver knows: 12040 is 12.4."""
        return self._out("nvmlSystemGetCudaDriverVersion_v2", [], _INT)

    def _device(self, handle: ctypes.c_void_p) -> dict:
        def number(name: str, *given: int, kind: type = _UINT) -> int | None:
            return self._out(name, [handle, *(_UINT(each) for each in given)], kind)

        utilization = self._struct("nvmlDeviceGetUtilizationRates", handle, _Utilization())
        memory = self._struct("nvmlDeviceGetMemoryInfo", handle, _Memory())
        ecc = self._outs("nvmlDeviceGetEccMode", handle, 2)
        rows = self._outs("nvmlDeviceGetRemappedRows", handle, 4)
        throttle = number("nvmlDeviceGetCurrentClocksEventReasons", kind=_ULL)
        if throttle is None:
            throttle = number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=_ULL)
        return {
            "lost": False,
            "name": self._text("nvmlDeviceGetName", [handle], 96),
            "uuid": self._text("nvmlDeviceGetUUID", [handle], 96),
            "temperature": number("nvmlDeviceGetTemperature", 0),
            "temperature_slowdown": number("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),
            "temperature_memory": self._memory_temperature(handle),
            "power_limit": _watts(number("nvmlDeviceGetEnforcedPowerLimit")),
            "power_default": _watts(number("nvmlDeviceGetPowerManagementDefaultLimit")),
            "clock": number("nvmlDeviceGetClockInfo", _SM),
            "clock_max": number("nvmlDeviceGetMaxClockInfo", _SM),
            "clock_application": number("nvmlDeviceGetApplicationsClock", _GRAPHICS),
            "clock_default": number("nvmlDeviceGetDefaultApplicationsClock", _GRAPHICS),
            "utilization": utilization.gpu if utilization else None,
            "memory_total": memory.total if memory else None,
            "memory_used": memory.used if memory else None,
            "persistence": _flag(number("nvmlDeviceGetPersistenceMode")),
            "ecc": _flag(ecc[0]) if ecc else None,
            "ecc_uncorrected": number("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE, kind=_ULL),
            "rows_uncorrectable": rows[1] if rows else None,
            "rows_pending": _flag(rows[2]) if rows else None,
            "rows_failed": _flag(rows[3]) if rows else None,
            "throttle": throttle,
            "pids": self._processes(handle),
        }

    def _processes(self, handle: ctypes.c_void_p) -> list[int] | None:
        found = (_Process * _MAX_PROCESSES)()
        count = _UINT(_MAX_PROCESSES)
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        if self._status(name, handle, ctypes.byref(count), found) != 0:
            return None
        return [found[index].pid for index in range(min(count.value, _MAX_PROCESSES))]

    def _memory_temperature(self, handle: ctypes.c_void_p) -> int | None:
        field = _Field(field=_MEMORY_TEMPERATURE)
        status = self._status("nvmlDeviceGetFieldValues", handle, _INT(1), ctypes.byref(field))
        return (field.value & 0xFFFFFFFF) or None if status == 0 and field.status == 0 else None

    def _struct(self, name: str, handle: ctypes.c_void_p, struct):  # type: ignore[no-untyped-def]
        return struct if self._status(name, handle, ctypes.byref(struct)) == 0 else None

    def _outs(self, name: str, handle: ctypes.c_void_p, count: int) -> list[int] | None:
        values = [_UINT() for _ in range(count)]
        status = self._status(name, handle, *(ctypes.byref(value) for value in values))
        return [value.value for value in values] if status == 0 else None

    def _out(self, name: str, given: list, kind: type) -> int | None:
        value = kind()
        return value.value if self._status(name, *given, ctypes.byref(value)) == 0 else None

    def _text(self, name: str, given: list, size: int) -> str | None:
        buffer = ctypes.create_string_buffer(size)
        return buffer.value.decode(errors="replace") if self._status(name, *given, buffer, _UINT(size)) == 0 else None

    def _status(self, name: str, *given: object) -> int:
        """What a function answers; 13, as NVML itself says, if this driver has none of that name."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return 13
        function.restype = _INT
        return function(*given)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
