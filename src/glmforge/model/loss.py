"""Next-token and multi-token-prediction losses as heads of the forward.

Losses are sums with their number of labels beside them: whoever knows all ranks and accumulation steps divides by
the global number. No function here makes [T, V] logits at once.

Shapes: B rows, S tokens per row, T tokens, N depths, D hidden_size.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from glmforge.kernels.cross_entropy import IGNORE_INDEX
from glmforge.kernels.documents import Documents
from glmforge.model.head import Heads


def labels_at_depth(labels_T: Tensor, documents: Documents, depth: int) -> Tensor:
    """Labels of the MTP layer at `depth`: position t is asked for the token `depth` after the next one.

    `labels_T` holds the next token (or -100); positions whose target lies past the end of their document get -100.
    """
    if depth == 0:
        return labels_T
    return labels_T.roll(-depth).masked_fill(~documents.continues_T(depth), IGNORE_INDEX)


class CrossEntropy(NamedTuple):
    """The loss of a depth: `sum` over all labels (fp32 scalar, differentiable), and its summands `nll_T` for metrics.

    Where ranks share the vocabulary, both are for all their tokens and this rank's share: summed over those ranks,
    they are the whole.
    """

    sum: Tensor
    nll_T: Tensor


class CrossEntropyHead:
    """`head` for `GlmMoe.forward`: the cross-entropy of each depth.

    `labels_NT` has one row per depth, the next token's first.
    """

    def __init__(self, labels_NT: Sequence[Tensor]) -> None:
        self.labels_NT = labels_NT

    @classmethod
    def whole(cls, labels_BS: Tensor, documents: Documents, num_mtp_layers: int = 0) -> Self:
        """For all tokens of the rows."""
        labels_T = labels_BS.flatten()
        return cls([labels_at_depth(labels_T, documents, depth) for depth in range(num_mtp_layers + 1)])

    def __call__(self, h_TD: Tensor, heads: Heads, depth: int) -> CrossEntropy:
        labels_T = self.labels_NT[depth]
        nll_T = torch.zeros(len(labels_T), dtype=torch.float32, device=h_TD.device)
        return CrossEntropy(heads.lm.cross_entropy_sum(h_TD, labels_T, nll_T), nll_T)
