"""What is minimised: sums over this rank's batch, with the global numbers they will be divided by known beforehand.

A training loss is a weighted sum of terms, each a mean over something of its own: labels, MTP labels, rows. A
gradient is exact on any number of ranks and accumulation steps only if every term is divided by its GLOBAL
denominator before the backward pass. Denominators depend on the data alone, so the trainer adds them up over ranks
and micro-batches first, then asks for the numerators.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from glmforge.config.schema import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.model.loss import CrossEntropyHead
from glmforge.model.transformer import GlmMoe


@dataclass(frozen=True)
class LossSum:
    """`numerators` (fp32 scalars, one per term, differentiable) and the routers' `counts_LE` (int64)."""

    numerators: Tensor
    counts_LE: Tensor


class Objective(Protocol):
    """One stage's loss. `terms` name the terms, `weights` [num_terms] weigh their means."""

    terms: tuple[str, ...]
    weights: tuple[float, ...]

    def denominators(self, batch: Batch) -> Tensor:
        """float64 [num_terms]: what each numerator of this batch is to be divided by, summed over all batches."""
        ...

    def loss(self, model: GlmMoe, batch: Batch) -> LossSum:
        """Run the model on the batch (already on the model's device)."""
        ...


class NextTokenObjective:
    """Cross-entropy of the next token, of each MTP depth, and the routers' sequence-level balance loss.

    MTP depths share `mtp_loss_weight` equally and average over their own labels; the balance loss is a mean over
    rows and a sum over layers. A term of weight 0 is not computed at all.
    """

    def __init__(self, phase: PhaseConfig, num_mtp_layers: int) -> None:
        self.num_depths = num_mtp_layers if phase.mtp_loss_weight else 0
        self.with_aux_loss = phase.aux_loss_weight > 0
        self.terms = ("loss", *(f"mtp_{depth}" for depth in range(1, self.num_depths + 1)))
        self.weights = (1.0, *[phase.mtp_loss_weight / num_mtp_layers] * self.num_depths)
        if self.with_aux_loss:
            self.terms += ("aux",)
            self.weights += (phase.aux_loss_weight,)

    def denominators(self, batch: Batch) -> Tensor:
        head = CrossEntropyHead(batch.labels_BS, batch.documents(batch.labels_BS.device))
        counts = [head.num_labels(depth) for depth in range(self.num_depths + 1)]
        if self.with_aux_loss:
            counts.append(torch.tensor(batch.ids_BS.shape[0], device=batch.ids_BS.device))
        return torch.stack(counts).double()

    def loss(self, model: GlmMoe, batch: Batch) -> LossSum:
        documents = batch.documents(batch.ids_BS.device)
        output = model(
            batch.ids_BS,
            documents,
            head=CrossEntropyHead(batch.labels_BS, documents),
            with_mtp=self.num_depths > 0,
            with_aux_loss=self.with_aux_loss,
        )
        numerators = [output.main, *output.mtp]
        if self.with_aux_loss:
            numerators.append(output.router.aux_loss)
        return LossSum(torch.stack(numerators), output.router.counts_LE)


ObjectiveFactory = Callable[[PhaseConfig], Objective]
"""Makes the objective of a phase."""
