"""Metrics of this machine's NVIDIA GPUs, from the driver's library (NVML), where dcgm-exporter does not run.

Each scrape asks the driver. What a card, a driver or the library does not know is absent, so an old driver gives fewer
series. A card that has fallen off the bus keeps its series `nvidia_gpu_up` at 0. The last Xid error is known only from
events, for which a thread waits; the driver does not tell of errors before the exporter started.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pynvml

from glmforge.errors import HostError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

logger = logging.getLogger(__name__)

REASONS = {0x04: "power_cap", 0x08: "hardware", 0x20: "temperature", 0x40: "hardware_temperature", 0x80: "power_brake"}
"""Why a clock is lowered, by NVML's bit. A power cap is usual under load; the others count as throttled."""

_LABELS = ("gpu", "uuid", "hostname")
_WAIT_MS = 500
_GAUGES = {
    "utilization": "time in which a kernel ran, percent",
    "memory_used_bytes": "memory in use",
    "memory_total_bytes": "memory",
    "temperature_celsius": "temperature of the chip",
    "power_watts": "power drawn",
    "xid": "last Xid error since the exporter started, 0 if none",
    "throttled": "1 while heat or hardware lowers the clock",
    "up": "1 if the driver answers for the card",
}


class GpuExporter:
    """A collector for prometheus_client. Raises `HostError` if the machine has no NVIDIA driver."""

    def __init__(self, hostname: str | None = None) -> None:
        self._hostname = hostname or socket.gethostname()
        self._xids: dict[int, int] = {}
        self._known: dict[int, str] = {}
        self._ends = threading.Event()
        try:
            pynvml.nvmlInit()
            self.num_gpus = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise HostError(f"NVML: {error}; run this on a machine with an NVIDIA driver") from None
        self._thread = threading.Thread(target=self._wait_for_xids, name="xid events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread that waits for events."""
        self._ends.set()
        self._thread.join()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def collect(self) -> "Iterator[Metric]":
        """All series of all cards, as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        gauges = {name: GaugeMetricFamily(f"nvidia_gpu_{name}", text, labels=_LABELS) for name, text in _GAUGES.items()}
        ecc = CounterMetricFamily(
            "nvidia_gpu_ecc_errors_total", "memory errors since the driver was loaded", labels=(*_LABELS, "type")
        )
        reasons = GaugeMetricFamily(
            "nvidia_gpu_throttle_reason", "1 while the reason lowers the clock", labels=(*_LABELS, "reason")
        )
        for index in range(self.num_gpus):
            found = self._read(index)
            labels = (str(index), self._known.get(index, ""), self._hostname)
            for name, value in found.items():
                if value is not None and name in gauges:
                    gauges[name].add_metric(labels, value)
            for kind in ("corrected", "uncorrected"):
                if found.get(kind) is not None:
                    ecc.add_metric((*labels, kind), found[kind])
            if found.get("reasons") is not None:
                for bit, reason in REASONS.items():
                    reasons.add_metric((*labels, reason), float(bool(found["reasons"] & bit)))
        yield from (family for family in (*gauges.values(), ecc, reasons) if family.samples)

    def _read(self, index: int) -> dict[str, Any]:
        """Values by name; None for what is not known."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError:
            return {"up": 0, "xid": self._xids.get(index, 0)}

        def ask(name: str, *arguments: Any) -> Any:
            return _answer(getattr(pynvml, f"nvmlDeviceGet{name}", None), handle, *arguments)

        uuid, memory, busy = ask("UUID"), ask("MemoryInfo"), ask("UtilizationRates")
        self._known[index] = uuid.decode(errors="replace") if isinstance(uuid, bytes) else str(uuid or "")
        reasons = ask("CurrentClocksEventReasons")
        reasons = ask("CurrentClocksThrottleReasons") if reasons is None else reasons
        power = ask("PowerUsage")
        corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return {
            "up": 1,
            "utilization": busy.gpu if busy else None,
            "memory_used_bytes": memory.used if memory else None,
            "memory_total_bytes": memory.total if memory else None,
            "temperature_celsius": ask("Temperature", pynvml.NVML_TEMPERATURE_GPU),
            "power_watts": power / 1000 if power is not None else None,
            "xid": self._xids.get(index, 0),
            "corrected": ask("TotalEccErrors", corrected, pynvml.NVML_VOLATILE_ECC),
            "uncorrected": ask("TotalEccErrors", uncorrected, pynvml.NVML_VOLATILE_ECC),
            "reasons": reasons,
            "throttled": None if reasons is None else float(any(reasons & bit for bit in REASONS if bit != 0x04)),
        }

    def _wait_for_xids(self) -> None:
        """Until `close`. A driver without events, as in some containers, gives no Xid errors."""
        handles = {}
        try:
            events = pynvml.nvmlEventSetCreate()
            for index in range(self.num_gpus):
                with suppress(pynvml.NVMLError):
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
                    handles[ctypes_value(handle)] = index
            while not self._ends.is_set():
                try:
                    event = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
                except pynvml.NVMLError as error:
                    if error.value not in (pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_GPU_IS_LOST):
                        raise
                    self._ends.wait(0.1)
                    continue
                index = handles.get(ctypes_value(event.device), -1)
                self._xids[index] = int(event.eventData)
                logger.warning("GPU %d: Xid %d", index, event.eventData)
        except pynvml.NVMLError as error:
            logger.warning("Xid errors are not known: NVML: %s", error)


def _answer(function: Callable[..., Any] | None, *arguments: Any) -> Any:
    """None for what the card, the driver or the library does not know."""
    try:
        return function(*arguments) if function else None
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return None


def ctypes_value(handle: Any) -> int:
    """The address in a handle: two handles of a card are different objects."""
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0
