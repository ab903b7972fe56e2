"""The Fisher information of a model's weights on given text: how much what it says there depends on each of them.

What is computed is the diagonal of the empirical Fisher matrix, per token:

    F_i = sum_n (d log p(x_n) / d w_i)^2 / sum_n T_n

over rows x_n of text with T_n labels; log p is the trunk's log-likelihood of a row's labels, summed. The gradient of a
whole row is squared, not that of a token: the scores of successive tokens are uncorrelated under the model, so the
expectation is that of single tokens, for a backward pass per row. Dividing by tokens makes it independent of the
rows' length. "Empirical" means that labels are those of the text and not drawn from the model, as most do for elastic
weight consolidation (Kirkpatrick et al., 2017, arXiv 1612.00796, leave it open); Kunstner et al. (2019, arXiv
1905.12558) show where the two differ: far from a minimum of the loss.

MTP layers, the balance loss and dropout have no part in it: F is 0 for MTP layers.

A sum of gradients over several rows would not do, so the model takes one row at a time. Ranks that read different rows
in training all take the same one here; the ranks of tp, cp, ep and pp share its work as ever. Cost: a forward and a
backward pass per row, and 4 bytes for each parameter beside weights and gradients.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from glmforge.backend.global_batch import GlobalBatch
from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.optim.sharding import local_part
from glmforge.parallel.model import ParallelModel


def diagonal_fisher(
    model: ParallelModel, rows: Iterable[Batch], advance: Callable[[int], None] = lambda done: None
) -> tuple[dict[str, Tensor], int]:
    """F of every parameter on this rank by name, fp32 and laid out like the parameter; and the labels of all rows.
    Collective.

    `rows` are batches of one row each, the same ones on all ranks. `advance` is called with the number of rows done.
    The model is left in evaluation mode, without gradients.
    """
    model.eval()
    model.set_capacity_factor(None)
    totals = {
        name: torch.zeros_like(p, dtype=torch.float32, requires_grad=False) for name, p in model.named_parameters()
    }
    num_tokens = 0
    for number, row in enumerate(rows, start=1):
        for name, gradient in _gradients(model, row):
            # The objective is the mean over the row's labels.
            local_part(totals[name]).addcmul_(gradient, gradient, value=float(row.num_label_tokens) ** 2)
        num_tokens += row.num_label_tokens
        advance(number)
    for total in totals.values():
        local_part(total).div_(max(num_tokens, 1))
    return totals, num_tokens


def _gradients(model: ParallelModel, row: Batch) -> Iterator[tuple[str, Tensor]]:
    """This rank's parts of the gradient of a row's mean cross-entropy; frees each when the next one is requested."""
    batch = GlobalBatch(model, _objective(row), [row.to(model.world.device)])
    model.run(batch.run, 1, batch.shape, num_mtp=0, backward=True)
    model.finish_gradients()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield name, local_part(parameter.grad)
            parameter.grad = None


def _objective(row: Batch) -> NextTokenObjective:
    phase = PhaseConfig(
        name="fisher",
        steps=1,
        seq_len=row.ids_BS.shape[1],
        batch_size=1,
        aux_loss_weight=0.0,
        mtp_loss_weight=0.0,
    )
    return NextTokenObjective(phase, num_mtp_layers=0)
