"""What a backend asks of an objective: sums over this rank's share of a batch, divided by global numbers known before.

A training loss is a weighted sum of terms, each a mean over something of its own: labels, MTP labels, rows, pairs. A
gradient is exact on any number of ranks and accumulation steps only if every term is divided by its GLOBAL
denominator before the backward pass. Denominators depend on the data alone, so the backend adds them up over ranks
and micro-batches first, then runs the model and asks for the numerators.

The model may lie in sections on several pipeline ranks. So an objective does not call it: it says what the forward is
to be requested (`head`, `num_mtp`, `with_aux_loss`) and makes numerators of what any section answers. The objectives
themselves are in `glmforge.objectives`, one file each.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from glmforge.config.phase import PhaseConfig
from glmforge.data.stream.batch import Batch
from glmforge.model.transformer import ForwardOutput, Head
from glmforge.observe.metric_table import Metric
from glmforge.parallel.inputs import TokenShare


class MetricSum(NamedTuple):
    """A sum that an objective reports beside its loss: `length` numbers under one name."""

    name: str
    length: int = 1


class Objective(Protocol):
    """One stage's loss. `terms` name the terms, `weights` [num_terms] weigh their means.

    Subclass it and the attributes below have these defaults.

    Attributes:
        metrics: sums over the global batch that are not minimised but reported.
        metric_rows: of what records tell of the objective, besides the metrics of every run: its terms and
            `metric_values`, by name.
        num_mtp: MTP depths the forward is to run.
        with_aux_loss: whether it is to compute the routers' balance loss.
        replays_experts: whether a batch's `ROUTED_EXPERTS` are about the model of this objective.
    """

    terms: tuple[str, ...]
    weights: tuple[float, ...]
    metrics: tuple[MetricSum, ...] = ()
    metric_rows: tuple[Metric, ...] = ()
    num_mtp: int = 0
    with_aux_loss: bool = False
    replays_experts: bool = True

    def denominators(self, batch: Batch) -> Tensor:
        """float64 [num_terms]: what each numerator of this batch is to be divided by, summed over all batches."""
        ...

    def head(self, batch: Batch, share: TokenShare) -> Head[Any]:
        """What the last section is to make of the hidden states of the rank's tokens, `share` of the batch's."""
        ...

    def numerators(self, output: ForwardOutput[Any], batch: Batch, share: TokenShare) -> Tensor:
        """fp32 [num_terms], differentiable: what a section on this rank adds to each numerator, 0 where nothing."""
        ...

    def add_metrics(
        self, sums: Mapping[str, Tensor], output: ForwardOutput[Any], batch: Batch, share: TokenShare
    ) -> None:
        """Add in place to the float64 vectors `metrics` asks for what a section on this rank has of each."""

    def metric_values(self, sums: Mapping[str, Tensor]) -> Mapping[str, object]:
        """What a step that was taken adds to the record, by names of `metric_rows`; a value with labels is a dictionary
        or a list. `sums` are `metrics` over the global batch, float64 on the host."""
        return {}


ObjectiveFactory = Callable[[PhaseConfig], Objective]
"""Makes the objective of a phase."""
