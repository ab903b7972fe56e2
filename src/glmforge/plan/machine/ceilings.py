"""What devices were measured to reach, which is less than their data sheets even where nothing is left to improve."""

from typing import NamedTuple

from glmforge.plan.machine.hardware import Accelerator


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
