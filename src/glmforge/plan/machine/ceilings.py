"""What devices reach at best, which is less than their data sheets even where nothing is left to improve."""

from typing import NamedTuple

from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.machine.measured import MatmulPoint


class Ceilings(NamedTuple):
    """bf16 FLOP/s of the best measured product, and bytes per second (read and written) of a large copy."""

    bf16_flops: float
    bandwidth: float


_USUAL = Ceilings(0.80, 0.895)
"""Shares of the data sheet, for devices without a measurement: what H100 and H200 reach."""


def ceilings(accelerator: Accelerator) -> Ceilings:
    """The measured ones, or the same shares of the data sheet as H100 and H200 reach."""
    points = accelerator.points
    products = [point.flops_per_second for point in points.matmuls if _is_plain_bf16(point)] if points else []
    bandwidth = points.copy_bandwidth if points else None
    return Ceilings(
        max(products, default=_USUAL.bf16_flops * accelerator.bf16_flops),
        bandwidth or _USUAL.bandwidth * accelerator.memory_bandwidth,
    )


def _is_plain_bf16(point: MatmulPoint) -> bool:
    return point.dtype == "bf16" and point.groups == 1
