"""One optimizer step: gradients over micro-batches, clip, check, update, level the experts.

The mathematics does not know how many ranks or micro-batches there are: numerators are divided by global
denominators, gradients are summed, router counts are summed over everything before the biases move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glmforge.data.stream.batch import Batch
from glmforge.model.moe import MoE
from glmforge.model.transformer import GlmMoe
from glmforge.optim.balance import update_router_bias
from glmforge.optim.clip import clip_grad_norm_
from glmforge.optim.optimizer import Optimizer
from glmforge.parallel.world import World
from glmforge.train.objective import Objective


@dataclass(frozen=True)
class StepResult:
    """What a step did: mean of each loss term over the global batch (fp64), the gradient's norm before clipping,
    tokens per expert over all ranks, and whether everything was finite (if not, nothing was updated)."""

    losses: dict[str, Tensor]
    grad_norm: Tensor
    counts_LE: Tensor
    finite: bool


def train_step(
    model: GlmMoe,
    optimizer: Optimizer,
    objective: Objective,
    micro_batches: Sequence[Batch],
    world: World,
    *,
    lr: float,
    grad_clip: float | None,
    router_bias_rate: float,
) -> StepResult:
    """Update the model on this rank's share of the global batch. All ranks call this together."""
    losses, counts_LE = _accumulate_gradients(model, objective, micro_batches, world)
    grad_norm = clip_grad_norm_(model.parameters(), grad_clip)
    # The one wait for the device in a step: a step must not be taken on a NaN.
    finite = bool(torch.isfinite(grad_norm) & torch.isfinite(losses).all())
    if finite:
        optimizer.set_lr(lr)
        optimizer.step()
        balance_routers(model, counts_LE, router_bias_rate)
    optimizer.zero_grad()
    return StepResult(dict(zip(objective.terms, losses, strict=True)), grad_norm, counts_LE, finite)


def _accumulate_gradients(
    model: GlmMoe, objective: Objective, micro_batches: Sequence[Batch], world: World
) -> tuple[Tensor, Tensor]:
    """Leave the global gradient in the parameters; returns the global mean of each term and the global counts."""
    denominators = world.sum(torch.stack([objective.denominators(batch) for batch in micro_batches]).sum(0))
    # A batch without a single label of some kind (all documents one token long) contributes 0, not 0 / 0.
    denominators = denominators.clamp_min(1)
    weights = torch.tensor(objective.weights, dtype=torch.float64, device=denominators.device)
    scales = (weights / denominators).float()
    numerators = torch.zeros_like(denominators)
    counts_LE: Tensor | None = None
    for batch in micro_batches:
        loss = objective.loss(model, batch)
        (loss.numerators * scales).sum().backward()
        numerators += loss.numerators.detach()
        counts_LE = loss.counts_LE if counts_LE is None else counts_LE + loss.counts_LE
    assert counts_LE is not None, "a step needs at least one micro-batch"
    return world.sum(numerators) / denominators, world.sum(counts_LE)


@torch.no_grad()
def balance_routers(model: GlmMoe, counts_LE: Tensor, rate: float) -> None:
    """Move every router's correction bias against its global load; `counts_LE` are in the order of the layers.

    Layers that did not run (MTP with weight 0) have no counts and keep their bias.
    """
    moe_layers = [layer.mlp for layer in model.model.layers if isinstance(layer.mlp, MoE)]
    for moe, counts_E in zip(moe_layers, counts_LE, strict=False):
        update_router_bias(moe.gate.e_score_correction_bias, counts_E, rate)
