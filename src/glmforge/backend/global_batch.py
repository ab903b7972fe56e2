"""One global batch's path through the model: what each section is to run, and what all of it adds up to.

The part of a step that no backend does in its own way. The mathematics does not know how many ranks or micro-batches
there are: numerators are divided by global denominators, and router counts are summed over everything before the
biases move.

Shapes: L routers (MoE layers, MTP layers last), E experts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glmforge.backend.objective import Objective
from glmforge.data.stream.batch import ROUTED_EXPERTS, Batch
from glmforge.kernels.transfer import on_device
from glmforge.model.dropout import Noise
from glmforge.model.transformer import Activations, GlmMoe
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.reducer import Reducer

_NUMERATORS = "numerators"


class GlobalBatch:
    """This rank's `micro_batches` of a global batch. All ranks make it together: denominators are summed here.

    Attributes:
        shape: rows and tokens per row of each micro-batch.
        mean_attended_length: sum of squared document lengths over their sum (float64 scalar).
    """

    def __init__(
        self,
        model: ParallelModel,
        objective: Objective,
        micro_batches: Sequence[Batch],
        noise: Noise | None = None,
    ) -> None:
        world, config = model.world, model.config
        self.objective, self.micro_batches, self.noise, self._world = objective, micro_batches, noise, world
        num_rows, seq_len = micro_batches[0].ids_BS.shape
        self.shape = (num_rows, seq_len)
        self._share = TokenShare(num_rows, seq_len, world, model.parallel, in_halves=model.parallel.ep_overlap)
        sums = torch.stack([_sums_over_data(objective, batch) for batch in micro_batches]).sum(0)
        of_data = world.sum(sums, "dp_replicate", "dp_shard")
        of_terms, (squares, tokens) = of_data.split((len(objective.terms), 2))
        self.mean_attended_length = squares / tokens
        # A batch without a single label of some kind (all documents one token long) contributes 0, not 0 / 0.
        self._denominators = of_terms.where(of_terms > 0, 1)
        weights = on_device(objective.weights, world.device, torch.float64)
        self._scales = (weights / self._denominators).float()
        lengths = [(_NUMERATORS, len(objective.terms)), *objective.metrics]
        self._sums = {name: torch.zeros(n, dtype=torch.float64, device=world.device) for name, n in lengths}
        shape = (2, config.num_moe_layers + objective.num_mtp, config.n_routed_experts)
        self._counts_2LE = torch.zeros(shape, dtype=torch.int64, device=world.device)

    def run(self, part: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        """Forward of a section over micro-batch `index`: the scalar to differentiate, and what the next one gets."""
        objective, batch, share = self.objective, self.micro_batches[index], self._share
        output = run_section(part, received, objective, batch, share, self.noise)
        numerators = objective.numerators(output, batch, share)
        self._sums[_NUMERATORS] += numerators.detach()
        with torch.no_grad():
            objective.add_metrics(self._sums, output, batch, share)
        router = output.router
        for number, counts_E, dropped_E in zip(part.moe_layers, router.counts_LE, router.dropped_LE, strict=False):
            self._counts_2LE[0, number] += counts_E
            self._counts_2LE[1, number] += dropped_E
        return (numerators * self._scales).sum(), output.activations

    def sum(self, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """Means of the terms, float64 [num_terms], and all other sums of the reducer, the objective's metrics among
        them. After the last section of the last micro-batch; all ranks call this together."""
        for name, values in self._sums.items():
            reducer.add(name, values)
        sums = reducer.sum()
        return sums.pop(_NUMERATORS) / self._denominators, sums

    def count_tokens(self) -> tuple[Tensor, Tensor]:
        """Tokens per router and expert, and those dropped, int64 [L, E]. Once, by all ranks together."""
        counts_LE, dropped_LE = self._world.sum(self._counts_2LE)
        return counts_LE, dropped_LE


def run_section(
    part: GlmMoe,
    received: Activations | None,
    objective: Objective,
    batch: Batch,
    share: TokenShare,
    noise: Noise | None = None,
    *,
    adapters: bool = True,
    with_routing: bool = False,
) -> Any:
    """Forward of one section over the rank's tokens of a micro-batch; without `adapters` it is the base model's.

    A batch that brings `ROUTED_EXPERTS` is routed by them, unless they are another model's.
    """
    tokens = None if noise is None else noise.of_samples(batch.sample_indices, share.seq_len, batch.documents())
    return part(
        share.inputs(
            batch.ids_BS,
            batch.documents(),
            objective.num_mtp,
            tokens,
            experts_BSLK=batch.per_token.get(ROUTED_EXPERTS) if objective.replays_experts else None,
            adapters=adapters,
        ),
        received,
        head=objective.head(batch, share),
        with_mtp=objective.num_mtp > 0,
        with_aux_loss=objective.with_aux_loss,
        with_routing=with_routing,
    )


def _sums_over_data(objective: Objective, batch: Batch) -> Tensor:
    """float64 [num_terms + 2]: denominators, sum of squares and sum of document lengths."""
    lengths = [length for row in batch.document_lengths for length in row]
    denominators = objective.denominators(batch)
    attended = on_device([sum(n * n for n in lengths), sum(lengths)], denominators.device, torch.float64)
    return torch.cat((denominators, attended))
