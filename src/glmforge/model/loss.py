"""Next-token and multi-token-prediction losses as heads of the forward.

Losses are sums with their number of labels beside them: the caller, which knows all ranks and accumulation steps,
divides by the global number. No function here makes [T, V] logits at once.

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
    """Labels of the MTP layer at `depth`: position t predicts the token `depth` after the next one.

    `labels_T` holds the next token (or -100); positions whose target lies past the end of their document get -100.
    """
    if depth == 0:
        return labels_T
    return labels_T.roll(-depth).masked_fill(~documents.continues_T(depth), IGNORE_INDEX)


class Targets(NamedTuple):
    """Labels at one depth: int64 labels or -100, and how much each counts (float32; None: 1)."""

    labels_T: Tensor
    weights_T: Tensor | None = None


class CrossEntropy(NamedTuple):
    """The loss of a depth: `sum` over all labels, each by its weight (fp32 scalar, differentiable), and `nll_T`, what
    each label cost without its weight, for metrics.

    With a z-loss `sum` has `z_weight` times `z_sum` in it, (log Z)^2 summed alike, which by itself is only a number.

    Where ranks share the vocabulary, all are for all their tokens and this rank's share: summed over those ranks,
    they are the whole.
    """

    sum: Tensor
    nll_T: Tensor
    z_sum: Tensor | None = None


class CrossEntropyHead:
    """`head` for `GlmMoe.forward`: the cross-entropy of each depth, and a z-loss of the next token.

    `targets` are those of each depth, the next token's first; `z_weight` is what the z-loss weighs beside the
    cross-entropy.
    """

    def __init__(self, targets: Sequence[Targets], z_weight: float = 0.0) -> None:
        self.targets, self.z_weight = targets, z_weight

    @classmethod
    def whole(cls, labels_BS: Tensor, documents: Documents, num_mtp_layers: int = 0) -> Self:
        """For all tokens of the rows."""
        labels_T = labels_BS.flatten()
        return cls([Targets(labels_at_depth(labels_T, documents, depth)) for depth in range(num_mtp_layers + 1)])

    def __call__(self, h_TD: Tensor, heads: Heads, depth: int) -> CrossEntropy:
        labels_T, weights_T = self.targets[depth]
        nll_T = torch.zeros(len(labels_T), dtype=torch.float32, device=h_TD.device)
        if depth or not self.z_weight:
            return CrossEntropy(heads.lm.cross_entropy_sum(h_TD, labels_T, nll_T, weights_T=weights_T), nll_T)
        log_z_T = torch.zeros_like(nll_T)
        both = heads.lm.cross_entropy_sum(
            h_TD, labels_T, nll_T, weights_T=weights_T, z_weight=self.z_weight, log_z_T=log_z_T
        )
        z_T = log_z_T.square() if weights_T is None else log_z_T.square() * weights_T
        return CrossEntropy(both, nll_T, z_T.sum())
