"""Router balance without a loss (Wang et al., 2024, arXiv 2408.15664).

Each expert has a bias that only the choice of experts sees. After every global step the bias of an expert
that got fewer tokens than the mean rises by `rate`, that of one that got more falls by as much. No gradient
is involved, so balance costs the language model nothing. Counts are integers and stay so: the sum over
ranks and the comparison with the mean are exact, regardless of the layout.

Counts are those of one global step: all micro-batches, all data ranks. L router layers, E experts.
"""

import torch
from torch import Tensor


@torch.no_grad()
def update_router_bias(bias_E: Tensor, counts_E: Tensor, rate: float) -> None:
    """Move the correction bias in place by `rate` * sign(mean count - count); at rate 0 nothing changes.

    `counts_E`: integer tokens per expert, summed over ranks. Both may have leading dims, [L, E].
    """
    if rate == 0:
        return
    # count < mean as total - E * count > 0, which integers decide exactly
    shortfall_E = counts_E.sum(dim=-1, keepdim=True) - counts_E.shape[-1] * counts_E
    bias_E.add_(shortfall_E.sign(), alpha=rate)
