"""What the optimizer needs beside weights, gradients and states while it updates them.

Muon takes matrices in rounds of a bounded size (`glmforge.optim.ownership`): for each element of a round the parts that
are sent and received, the matrices, and Newton-Schulz's iterate before and after a step. A matrix larger than a round,
such as the head, is a round of its own. AdamW works in place, a group of parameters at a time.
"""

from collections.abc import Iterable

from glmforge.plan.memory.shards import Sharding, Weight
from glmforge.plan.work.operations import BF16

_ROUND = {True: 2**26, False: 2**20}
"""Elements of a round, where a GPU's kernels are taken and where a CPU's."""
_COPIES = 6
"""Of a round's elements in the compute type."""


def update_bytes(weights: Iterable[Weight], sharding: Sharding) -> int:
    """At most, for the parameters of a rank."""
    largest = 0
    for weight in weights:
        row = weight.row
        if weight.has_gradient and row.family in ("matrix", "head") and len(row.shape) > 1:
            matrix = row.shape[-1] * row.shape[-2] // row.num_fused
            largest = max(largest, matrix)
    if not largest:
        return 0
    return _COPIES * sharding.itemsize * max(largest, _ROUND[sharding.itemsize == BF16])
