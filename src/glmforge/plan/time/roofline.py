"""The physical limit of an operation: no kernel is faster than its FLOPs at the peak rate, or its bytes at bandwidth.

Limits are those of data sheets (`glmforge.plan.machine.hardware`); what real devices were measured to reach is in
`glmforge.plan.machine.ceilings`.
"""

from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.work.operations import FP32, Work


def work_limit(work: Work, accelerator: Accelerator) -> float:
    """Seconds of one pass at the least."""
    in_fp32 = sum(matmul.flops for matmul in work.matmuls if matmul.itemsize == FP32)
    compute = in_fp32 / accelerator.fp32_flops + (work.flops - in_fp32) / accelerator.bf16_flops
    return max(compute, work.bytes / accelerator.memory_bandwidth)
