"""What is minimised: sums over this rank's share of a batch, divided by global numbers that are known beforehand.

A training loss is a weighted sum of terms, each a mean over something of its own: labels, MTP labels, rows. A
gradient is exact on any number of ranks and accumulation steps only if every term is divided by its GLOBAL
denominator before the backward pass. Denominators depend on the data alone, so the trainer adds them up over ranks
and micro-batches first, then runs the model and asks for the numerators.

The model may lie in sections on several pipeline ranks. So an objective does not call it: it says what the forward is
to be asked for (`head`, `num_mtp`, `with_aux_loss`) and makes numerators of what any section answers.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.model.loss import CrossEntropyHead, SumsByKind, labels_at_depth
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.parallel.inputs import TokenShare


class Objective(Protocol):
    """One stage's loss. `terms` name the terms, `weights` [num_terms] weigh their means.

    Attributes:
        num_mtp: MTP depths the forward is to run.
        with_aux_loss: whether it is to compute the routers' balance loss.
        num_sources: sources of data that are told apart; `Batch.source_B` counts them.
    """

    terms: tuple[str, ...]
    weights: tuple[float, ...]
    num_mtp: int
    with_aux_loss: bool
    num_sources: int

    def denominators(self, batch: Batch) -> Tensor:
        """float64 [num_terms]: what each numerator of this batch is to be divided by, summed over all batches."""
        ...

    def source_tokens(self, batch: Batch) -> Tensor:
        """float64 [num_sources]: label tokens of each source."""
        ...

    def head(self, batch: Batch, share: TokenShare, source_nll_S: Tensor | None = None) -> Head[Any]:
        """What the last section is to make of the hidden states of the rank's tokens.

        If `source_nll_S` (float64) is given, the head adds each source's summed loss to it.
        """
        ...

    def numerators(self, output: ForwardOutput[Any]) -> Tensor:
        """fp32 [num_terms], differentiable: a section's part of each numerator, 0 where it has none."""
        ...


class NextTokenObjective:
    """Cross-entropy of the next token, of each MTP depth, and the routers' sequence-level balance loss.

    MTP depths share `mtp_loss_weight` equally and average over their own labels; the balance loss is a mean over
    rows and a sum over layers. A term of weight 0 is not computed at all.
    """

    def __init__(self, phase: PhaseConfig, num_mtp_layers: int, num_sources: int = 1) -> None:
        self.num_sources = num_sources
        self.num_mtp = num_mtp_layers if phase.mtp_loss_weight else 0
        self.with_aux_loss = phase.aux_loss_weight > 0
        self.terms = ("loss", *(f"mtp_{depth}" for depth in range(1, self.num_mtp + 1)))
        self.weights = (1.0, *[phase.mtp_loss_weight / max(1, num_mtp_layers)] * self.num_mtp)
        if self.with_aux_loss:
            self.terms += ("aux",)
            self.weights += (phase.aux_loss_weight,)

    def denominators(self, batch: Batch) -> Tensor:
        counts = [(labels_T >= 0).sum() for labels_T in self._labels(batch)]
        if self.with_aux_loss:
            counts.append(torch.tensor(batch.ids_BS.shape[0], device=batch.ids_BS.device))
        return torch.stack(counts).double()

    def source_tokens(self, batch: Batch) -> Tensor:
        labels_B = (batch.labels_BS >= 0).sum(1).double()
        return labels_B.new_zeros(self.num_sources).index_add_(0, _sources(batch), labels_B)

    def head(self, batch: Batch, share: TokenShare, source_nll_S: Tensor | None = None) -> CrossEntropyHead:
        by_kind = None
        if source_nll_S is not None:
            source_T = _sources(batch).repeat_interleave(batch.ids_BS.shape[1], output_size=batch.num_tokens)
            by_kind = SumsByKind(share.take(source_T), source_nll_S)
        return CrossEntropyHead([share.take(labels_T) for labels_T in self._labels(batch)], by_kind)

    def numerators(self, output: ForwardOutput[Tensor]) -> Tensor:
        aux_loss = output.router.aux_loss
        losses = (
            [output.main, *output.mtp]
            if output.activations is None
            else [torch.zeros_like(aux_loss)] * (1 + self.num_mtp)
        )
        return torch.stack([*losses, aux_loss] if self.with_aux_loss else losses)

    def _labels(self, batch: Batch) -> list[Tensor]:
        """Labels of all tokens of the rows, one tensor per depth."""
        documents, labels_T = batch.documents(batch.labels_BS.device), batch.labels_BS.flatten()
        return [labels_at_depth(labels_T, documents, depth) for depth in range(self.num_mtp + 1)]


def _sources(batch: Batch) -> Tensor:
    return torch.tensor(batch.source_B, dtype=torch.int64, device=batch.labels_BS.device)


ObjectiveFactory = Callable[[PhaseConfig], Objective]
"""Makes the objective of a phase."""
