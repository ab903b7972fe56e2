"""Score given text: the loss of every token and the model's own choice at each.

Shapes: T tokens, o the rank's own ones, D hidden_size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.data.stream.batch import Batch
from glmforge.model.head import Heads
from glmforge.model.transformer import Activations, ForwardOutput, GlmMoe
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel


@dataclass(frozen=True)
class TokenScores:
    """Of the rank's own tokens: `nll_o` fp32 (0 without a label) and `greedy_o` int64, the most likely token."""

    nll_o: Tensor
    greedy_o: Tensor


class ScoringHead:
    """`head` for `GlmMoe.forward` in evaluation. Depths beyond the first are not scored against the labels but have
    their choice compared with the trunk's."""

    def __init__(self, labels_T: Tensor) -> None:
        self.labels_T = labels_T

    def __call__(self, h_TD: Tensor, heads: Heads, depth: int) -> TokenScores:
        if depth == 0:
            return TokenScores(heads.lm.token_nll(h_TD, self.labels_T), heads.lm.greedy(h_TD))
        greedy_o = heads.lm.greedy(h_TD)
        return TokenScores(torch.zeros_like(greedy_o, dtype=torch.float32), greedy_o)


def score_batch(
    model: ParallelModel, batch: Batch, share: TokenShare, num_mtp: int
) -> ForwardOutput[TokenScores] | None:
    """Score the labels of `batch`, which is on the model's device, with `num_mtp` MTP depths; None on ranks that do not
    have the last section. Collective."""
    documents, labels_T = batch.documents(), batch.labels_BS.flatten()
    outputs: list[ForwardOutput[TokenScores]] = []

    def run(part: GlmMoe, _: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        head = ScoringHead(share.take(labels_T))
        inputs = share.inputs(batch.ids_BS, documents, num_mtp)
        output = part(inputs, received, head=head, with_mtp=num_mtp > 0)
        if output.activations is None:
            outputs.append(output)
        return output.router.aux_loss, output.activations

    num_rows, seq_len = batch.ids_BS.shape
    model.run(run, 1, (num_rows, seq_len), num_mtp=num_mtp, backward=False)
    return outputs[0] if outputs else None
