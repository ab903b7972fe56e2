"""What a step takes on GPUs beside the work that shapes and bytes tell: five numbers, fitted to published runs.

Much of a step with small experts is neither arithmetic nor bandwidth: kernels that begin and end, a product for each
expert that does not fill the device, casts to fp8 one expert at a time. A closed form of such things is a time for
each, and their number. The numbers are fitted to about half of the published models and tested on the others
(`benchmarks/plan_published.py`, which fits them again).

All but `grouped` are for devices whose processors are counted (`Accelerator.num_processors`). On processor cores the
host is measured instead (`glmforge.plan.machine.machine.Cores`). Where products of experts were measured, they take
what was measured, and neither `grouped` nor `expert` applies.
"""

from typing import NamedTuple


class Overheads(NamedTuple):
    """See `BOUNDS` for what is possible of each.

    Attributes:
        launch: seconds of each product, attention and memory-bound operation of a pass, between it and the next.
        expert: seconds that each expert on a rank adds to each of its products.
        fp8_expert: seconds that each adds more where the product is in fp8: operands cast and scales found one by one.
        grouped: of a dense product's rate, what products of experts reach.
        sustained: of the rates that short measurements reach, what products and attention reach in a step that goes on
            for hours: clocks fall when all processors and links draw power.
    """

    launch: float
    expert: float
    fp8_expert: float
    grouped: float
    sustained: float


BOUNDS: tuple[tuple[float, float], ...] = ((1e-6, 20e-6), (0.0, 20e-6), (0.0, 60e-6), (0.6, 1.0), (0.7, 1.0))
"""Of each, what is physically plausible: gaps of one to several kernels, products that end alone, some ten small
kernels for casts, measured grouped products, and clocks under load."""

# `fp8_expert` is where the fit began: wherever it would matter, `matmul_seconds` takes bf16.
FITTED = Overheads(launch=12.5e-6, expert=8.1e-6, fp8_expert=20e-6, grouped=0.60, sustained=0.833)

INTERVAL = 1.34
"""Four of five runs take between a step's predicted time divided by this, and multiplied by it: by the spread of the
runs that the numbers were fitted to, each model predicted with what is fitted to the others."""
