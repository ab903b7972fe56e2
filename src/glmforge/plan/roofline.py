"""The physical limit of an operation: no kernel is faster than its FLOPs at the peak rate, or its bytes at bandwidth.

Limits are those of data sheets (`glmforge.plan.hardware`). Real devices reach less even where nothing is left to be
improved; what a large matmul and a large copy were once measured to reach is `MEASURED_CEILINGS`.
"""

from typing import NamedTuple

from glmforge.plan.hardware import Accelerator
from glmforge.plan.operations import FP32, Work


class Ceilings(NamedTuple):
    """What a device was measured to reach: bf16 FLOP/s of one product of 8,192 x 8,192 matrices, and bytes per second
    (read and written) of a large copy."""

    bf16_flops: float
    bandwidth: float


MEASURED_CEILINGS = {"H100 SXM": Ceilings(798e12, 3.0e12), "H200 SXM": Ceilings(788e12, 4.3e12)}
"""On a single machine of each kind, by plain torch calls and no code of this project."""

_USUAL = Ceilings(0.80, 0.895)
"""Shares of the data sheet, for devices without a measurement: what those two reach."""


def ceilings(accelerator: Accelerator) -> Ceilings:
    """The measured ones, or the same shares of the data sheet as those reach."""
    usual = Ceilings(_USUAL.bf16_flops * accelerator.bf16_flops, _USUAL.bandwidth * accelerator.memory_bandwidth)
    return MEASURED_CEILINGS.get(accelerator.name, usual)


def work_limit(work: Work, accelerator: Accelerator) -> float:
    """Seconds of one pass at the least."""
    in_fp32 = sum(matmul.flops for matmul in work.matmuls if matmul.itemsize == FP32)
    compute = in_fp32 / accelerator.fp32_flops + (work.flops - in_fp32) / accelerator.bf16_flops
    return max(compute, work.bytes / accelerator.memory_bandwidth)
