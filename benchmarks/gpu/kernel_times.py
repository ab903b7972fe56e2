"""Where a device spends the forward and backward passes of a step: seconds by kind of kernel, from a profile.

Kernels are told apart by their names, which compiling does not take away as it takes modules and operators. Newton-
Schulz is matmuls as well, so only the passes are looked at, and the update by itself (`phases_s` of a figure).
`docs/performance.md` sets these beside what is predicted of the same kinds.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from glmforge.parallel.communication import parse_trace

KINDS = {
    "attention": r"flash|fmha|attention",
    "grouped matmuls": r"GroupProblemShape|PtrArray|grouped",
    "dense matmuls": r"gemm|nvjet|cutlass|xmma|cublas|triton_tem.*mm",
}
"""In this order: a grouped matmul's kernel has CUTLASS's name as well."""
OTHER, IDLE = "other kernels", "idle"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def kernel_times(passes: Callable[[], object]) -> dict[str, float]:
    """Seconds of each kind of kernel while `passes` runs, and in which none ran; empty without CUDA.

    Run it once before, so that nothing is compiled or loaded here.
    """
    if not torch.cuda.is_available():
        passes()
        return {}
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        passes()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        file = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(file))
        return seconds_by_kind(parse_trace(file.read_bytes()))


def seconds_by_kind(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Of the `traceEvents` of a Chrome trace (times in microseconds), from the first kernel to the last."""
    found = [event for event in events if event.get("ph") == "X" and event.get("cat") in _ON_DEVICE]
    if not found:
        return {}
    micros: Counter[str] = Counter()
    for event in found:
        micros[kind_of(str(event["name"]))] += float(event["dur"])
    begin = min(float(event["ts"]) for event in found)
    end = max(float(event["ts"]) + float(event["dur"]) for event in found)
    micros[IDLE] = max(0.0, end - begin - micros.total())
    return {kind: micros[kind] * 1e-6 for kind in (*KINDS, OTHER, IDLE)}


def kind_of(kernel: str) -> str:
    """The kind of a kernel by its name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), OTHER)
