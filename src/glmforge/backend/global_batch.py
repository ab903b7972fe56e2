"""One global batch's path through the model: what each section is to run, and what all of it adds up to.

The part of a step that no backend does in its own way. The mathematics does not know how many ranks or micro-batches
there are: numerators are divided by global denominators, and router counts are summed over everything before the
biases move.

Shapes: L routers (MoE layers, MTP layers last), E experts.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glmforge.backend.objective import Objective
from glmforge.data.stream.batch import Batch
from glmforge.kernels.transfer import on_device
from glmforge.model.dropout import Noise
from glmforge.model.transformer import Activations, ForwardOutput, GlmMoe, Half
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
        self.objective, self.noise, self._world = objective, noise, world
        num_rows, seq_len = micro_batches[0].ids_BS.shape
        self.shape = (num_rows, seq_len)
        self._halves: list[list[Batch]] = [[batch] for batch in micro_batches]
        if model.parallel.ep_overlap:
            num_rows //= 2
            self._halves = [batch.micro_batches(num_rows) for batch in micro_batches]
        self._share = TokenShare(num_rows, seq_len, world, model.parallel)
        sums = torch.stack([_sums_over_data(objective, half) for halves in self._halves for half in halves]).sum(0)
        of_data = world.sum(sums, "dp_replicate", "dp_shard")
        of_terms, (squares, tokens) = of_data.split((len(objective.terms), 2))
        self.mean_attended_length = squares / tokens
        # A batch without a single label of some kind (all documents one token long) contributes 0, not 0 / 0.
        self._denominators = of_terms.clamp_min(1)
        weights = on_device(objective.weights, world.device, torch.float64)
        self._scales = (weights / self._denominators).float()
        lengths = [(_NUMERATORS, len(objective.terms)), *objective.metrics]
        self._sums = {name: torch.zeros(n, dtype=torch.float64, device=world.device) for name, n in lengths}
        shape = (2, config.num_moe_layers + objective.num_mtp, config.n_routed_experts)
        self._counts_2LE = torch.zeros(shape, dtype=torch.int64, device=world.device)

    def run(self, part: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        """Forward of a section over micro-batch `index`: the scalar to differentiate, and what the next one gets."""
        halves = self._halves[index]
        outputs: Sequence[ForwardOutput[Any]]
        if len(halves) == 1:
            outputs = [run_section(part, received, self.objective, halves[0], self._share, self.noise)]
        else:
            outputs = run_halves(part, received, self.objective, halves, self._share, self.noise)
        numerators = [self._numerators(part, output, half) for output, half in zip(outputs, halves, strict=True)]
        loss = (functools.reduce(torch.add, numerators) * self._scales).sum()
        passed_on = [output.activations for output in outputs if output.activations is not None]
        return loss, Activations.join(passed_on) if passed_on else None

    def _numerators(self, part: GlmMoe, output: ForwardOutput[Any], batch: Batch) -> Tensor:
        """What a section adds to each numerator; everything else that is summed is added up here."""
        numerators = self.objective.numerators(output, batch, self._share)
        self._sums[_NUMERATORS] += numerators.detach()
        with torch.no_grad():
            self.objective.add_metrics(self._sums, output, batch, self._share)
        router = output.router
        for number, counts_E, dropped_E in zip(part.moe_layers, router.counts_LE, router.dropped_LE, strict=False):
            self._counts_2LE[0, number] += counts_E
            self._counts_2LE[1, number] += dropped_E
        return numerators

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
) -> ForwardOutput[Any]:
    """Forward of one section over the rank's tokens of a micro-batch."""
    whole = _inputs(received, objective, batch, share, noise)
    return part(whole.inputs, whole.activations, head=whole.head, **_asked_for(objective))


def run_halves(
    part: GlmMoe,
    received: Activations | None,
    objective: Objective,
    halves: Sequence[Batch],
    share: TokenShare,
    noise: Noise | None = None,
) -> Sequence[ForwardOutput[Any]]:
    """The same with the halves of the micro-batch in turn, `share` of each of them."""
    of_halves = [None] * len(halves) if received is None else received.split(len(halves))
    inputs = [_inputs(each, objective, batch, share, noise) for each, batch in zip(of_halves, halves, strict=True)]
    return part.forward_halves(*inputs, **_asked_for(objective))


def _inputs(
    received: Activations | None, objective: Objective, batch: Batch, share: TokenShare, noise: Noise | None
) -> Half[Any]:
    device = batch.ids_BS.device
    tokens = None if noise is None else noise.of_samples(batch.sample_indices, share.seq_len, device)
    inputs = share.inputs(batch.ids_BS, batch.documents(), objective.num_mtp, tokens)
    return Half(inputs, objective.head(batch, share), received)


def _asked_for(objective: Objective) -> dict[str, bool]:
    return {"with_mtp": objective.num_mtp > 0, "with_aux_loss": objective.with_aux_loss}


def _sums_over_data(objective: Objective, batch: Batch) -> Tensor:
    """float64 [num_terms + 2]: denominators, sum of squares and sum of document lengths."""
    lengths = [length for row in batch.document_lengths for length in row]
    denominators = objective.denominators(batch)
    attended = on_device([sum(n * n for n in lengths), sum(lengths)], denominators.device, torch.float64)
    return torch.cat((denominators, attended))
