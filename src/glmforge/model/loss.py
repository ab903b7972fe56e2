"""Next-token and multi-token-prediction losses as heads of the forward.

Losses are sums with their number of labels beside them: whoever knows all ranks and accumulation steps divides by
the global number. No function here makes [T, V] logits at once.

Shapes: B rows, S tokens per row, T = B * S tokens, D hidden_size, V vocab_size.
"""

from torch import Tensor

from glmforge.kernels.cross_entropy import IGNORE_INDEX, linear_cross_entropy_sum
from glmforge.kernels.documents import Documents


def labels_at_depth(labels_T: Tensor, documents: Documents, depth: int) -> Tensor:
    """Labels of the MTP layer at `depth`: position t is asked for the token `depth` after the next one.

    `labels_T` holds the next token (or -100); positions whose target lies past the end of their document get -100.
    """
    if depth == 0:
        return labels_T
    return labels_T.roll(-depth).masked_fill(~documents.continues_T(depth), IGNORE_INDEX)


class CrossEntropyHead:
    """`head` for `GlmMoe.forward`: the summed cross-entropy of each depth (fp32 scalar, differentiable)."""

    def __init__(self, labels_BS: Tensor, documents: Documents) -> None:
        self.labels_T = labels_BS.flatten()
        self.documents = documents

    def __call__(self, h_TD: Tensor, weight_VD: Tensor, depth: int) -> Tensor:
        return linear_cross_entropy_sum(h_TD, weight_VD, self.labels(depth))

    def labels(self, depth: int) -> Tensor:
        return labels_at_depth(self.labels_T, self.documents, depth)

    def num_labels(self, depth: int) -> Tensor:
        """How many labels the sum of this depth runs over (int64 scalar)."""
        return (self.labels(depth) != IGNORE_INDEX).sum()
