"""How many floating-point operations training takes per token.

The usual count (Kaplan et al., arXiv 2001.08361; PaLM's appendix B, arXiv 2204.02311): each matrix element
that a token passes through costs a multiplication and an addition forward and twice that backward, 6 in all;
attention adds the score and value products, of which a causal mask leaves half. Only the experts that a token
visits count. Recomputation, norms, softmax and the optimizer do not: this is the work of the model, and the
figure that utilisation is measured against.

    6 (N_trunk + V D [+ N_mtp]) + 6 s H P (L [+ L_mtp])

with N the matrix elements that multiply each token and s the mean attended length.
"""

from collections.abc import Iterable

from glmforge.config.model import ModelConfig
from glmforge.plan.counts.parameters import count_parameters


def train_flops_per_token(config: ModelConfig, mean_attended: float, with_mtp: bool = True) -> float:
    """FLOPs of forward and backward per trained token.

    `mean_attended` is the sequence length, or `mean_attended_length` of packed documents; the causal half of
    it is part of the formula. `with_mtp` adds the multi-token-prediction layers.
    """
    counts = count_parameters(config)
    matmul = counts.trunk_matmul + counts.head.matrices
    num_attentions = config.num_hidden_layers
    if with_mtp:
        matmul += counts.mtp_matmul
        num_attentions += config.num_nextn_predict_layers
    attention = mean_attended * config.num_attention_heads * config.head_dim * num_attentions
    return 6 * (matmul + attention)


def mean_attended_length(document_lengths: Iterable[int]) -> float:
    """The sequence length that costs the same attention per token as these documents: sum L^2 / sum L."""
    tokens = squares = 0
    for length in document_lengths:
        tokens += length
        squares += length * length
    if tokens == 0:
        raise ValueError("document_lengths: no tokens; the mean over no documents is undefined")
    return squares / tokens
