"""One optimizer step: gradients over micro-batches, clip, check, update, level the experts.

The mathematics does not know how many ranks or micro-batches there are: numerators are divided by global
denominators, gradients are summed, router counts are summed over everything before the biases move.

Shapes: L routers (MoE layers, MTP layers last), E experts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glmforge.data.stream.batch import Batch
from glmforge.model.transformer import Activations, GlmMoe
from glmforge.optim.balance import update_router_bias
from glmforge.optim.clip import clip_grad_norm_
from glmforge.optim.optimizer import Optimizer
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel
from glmforge.train.objective import Objective


@dataclass(frozen=True)
class StepResult:
    """What a step did, the same on all ranks.

    Attributes:
        losses: mean of each loss term over the global batch (fp64).
        grad_norm: of the whole gradient, before clipping.
        counts_LE, dropped_LE: tokens per expert, and those dropped for want of capacity (int64).
        mean_attended_length: sum of squared document lengths over their sum (float64 scalar).
        finite: whether everything was; if not, nothing was updated.
    """

    losses: dict[str, Tensor]
    grad_norm: Tensor
    counts_LE: Tensor
    dropped_LE: Tensor
    mean_attended_length: Tensor
    finite: bool


@dataclass(frozen=True)
class Accumulated:
    """What forward and backward of a global batch gave besides gradients; see `StepResult`."""

    losses: Tensor
    counts_LE: Tensor
    dropped_LE: Tensor
    mean_attended_length: Tensor


def train_step(
    model: ParallelModel,
    optimizer: Optimizer,
    objective: Objective,
    micro_batches: Sequence[Batch],
    *,
    lr: float,
    grad_clip: float | None,
    router_bias_rate: float,
    to_host: Callable[[Tensor], bool] = bool,
) -> StepResult:
    """Update the model on this rank's share of the global batch. All ranks call this together.

    `to_host` brings a boolean to the host; a dry run, whose tensors have no values, gives its own answer.
    """
    done = accumulate_gradients(model, objective, micro_batches)
    grad_norm = clip_grad_norm_(model.parameters(), grad_clip, model.world)
    # The one wait for the device in a step: a step must not be taken on a NaN.
    finite = to_host(torch.isfinite(grad_norm) & torch.isfinite(done.losses).all())
    if finite:
        optimizer.set_lr(lr)
        optimizer.step()
        balance_routers(model, done.counts_LE, router_bias_rate)
    optimizer.zero_grad()
    return StepResult(
        dict(zip(objective.terms, done.losses, strict=True)),
        grad_norm,
        done.counts_LE,
        done.dropped_LE,
        done.mean_attended_length,
        finite,
    )


def accumulate_gradients(model: ParallelModel, objective: Objective, micro_batches: Sequence[Batch]) -> Accumulated:
    """Leave the global gradient in the parameters. All ranks call this together."""
    world, config = model.world, model.config
    sums = torch.stack([_sums_over_data(objective, batch) for batch in micro_batches]).sum(0)
    *per_term, squares, tokens = world.sum(sums, "dp_replicate", "dp_shard")
    # A batch without a single label of some kind (all documents one token long) contributes 0, not 0 / 0.
    denominators = torch.stack(per_term).clamp_min(1)
    weights = torch.tensor(objective.weights, dtype=torch.float64, device=denominators.device)
    scales = (weights / denominators).float()
    numerators = torch.zeros_like(denominators)
    num_routers = config.num_moe_layers + objective.num_mtp
    counts_2LE = torch.zeros(2, num_routers, config.n_routed_experts, dtype=torch.int64, device=world.device)

    def run(part: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        output = run_section(part, received, objective, micro_batches[index], share)
        numerator = objective.numerators(output)
        numerators.add_(numerator.detach())
        for number, counts_E, dropped_E in zip(
            part.moe_layers, output.router.counts_LE, output.router.dropped_LE, strict=False
        ):
            counts_2LE[0, number] += counts_E
            counts_2LE[1, number] += dropped_E
        return (numerator * scales).sum(), output.activations

    num_rows, seq_len = micro_batches[0].ids_BS.shape
    share = TokenShare(num_rows, seq_len, world, model.parallel)
    model.run(run, len(micro_batches), (num_rows, seq_len), num_mtp=objective.num_mtp, backward=True)
    model.finish_gradients()
    counts_LE, dropped_LE = world.sum(counts_2LE)
    return Accumulated(world.sum(numerators) / denominators, counts_LE, dropped_LE, squares / tokens)


def run_section(
    part: GlmMoe, received: Activations | None, objective: Objective, batch: Batch, share: TokenShare
) -> Any:
    """Forward of one section over the rank's tokens of a micro-batch."""
    documents = batch.documents(batch.ids_BS.device)
    return part(
        share.inputs(batch.ids_BS, documents, objective.num_mtp),
        received,
        head=objective.head(batch, share),
        with_mtp=objective.num_mtp > 0,
        with_aux_loss=objective.with_aux_loss,
    )


def _sums_over_data(objective: Objective, batch: Batch) -> Tensor:
    """float64 [num_terms + 2]: the denominators, then sum of squares and sum of the document lengths."""
    lengths = [length for row in batch.document_lengths for length in row]
    attended = torch.tensor([sum(n * n for n in lengths), sum(lengths)], dtype=torch.float64)
    denominators = objective.denominators(batch)
    return torch.cat((denominators, attended.to(denominators.device)))


@torch.no_grad()
def balance_routers(model: ParallelModel, counts_LE: Tensor, rate: float) -> None:
    """Move every router's correction bias against its global load; `counts_LE` are in the order of the layers.

    Layers that did not run (MTP with weight 0) have no counts and keep their bias.
    """
    for number, moe in model.moe_layers().items():
        if number < len(counts_LE):
            update_router_bias(moe.gate.e_score_correction_bias, counts_LE[number], rate)
