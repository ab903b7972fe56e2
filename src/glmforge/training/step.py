"""One optimizer step: gradients over micro-batches, clip, check, update, level the experts.

The mathematics does not know how many ranks or micro-batches there are: numerators are divided by global
denominators, gradients are summed, router counts are summed over everything before the biases move.

Shapes: L routers (MoE layers, MTP layers last), E experts, S sources of data, F flags.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glmforge.data.stream.batch import Batch
from glmforge.model.dropout import Noise
from glmforge.model.transformer import Activations, GlmMoe
from glmforge.optim.balance import update_router_bias
from glmforge.optim.clip import clip_grad_norm_
from glmforge.optim.optimizer import Optimizer
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel
from glmforge.training.objective import Objective

FLAGS = ("preempt", "interrupt", "stop", "save", "profile")
"""What a rank may ask of all: save and give way (to the scheduler, to a person), save and end, save, profile. All hear
of it within the next step."""
ENDING = frozenset({"preempt", "interrupt", "stop"})
"""Those after which this process takes no more steps."""


@dataclass(frozen=True)
class StepResult:
    """What a step did, the same on all ranks.

    Attributes:
        losses: mean of each loss term over the global batch.
        grad_norm: of the whole gradient, before clipping.
        counts_LE, dropped_LE: tokens per expert, and those dropped for want of capacity (int64).
        mean_attended_length: sum of squared document lengths over their sum (float64 scalar).
        source_tokens_S, source_nll_S: label tokens of each source and their summed next-token cross-entropy (float64).
        finite: whether everything was; if not, nothing was updated.
        flags: what some rank has raised; see `FLAGS`.
    """

    losses: dict[str, float]
    grad_norm: float
    counts_LE: Tensor
    dropped_LE: Tensor
    mean_attended_length: Tensor
    source_tokens_S: Tensor
    source_nll_S: Tensor
    finite: bool
    flags: frozenset[str]


@dataclass(frozen=True)
class Accumulated:
    """What forward and backward of a global batch gave besides gradients; see `StepResult`. `flags_F` are counts."""

    losses: Tensor
    counts_LE: Tensor
    dropped_LE: Tensor
    mean_attended_length: Tensor
    source_tokens_S: Tensor
    source_nll_S: Tensor
    flags_F: Tensor


def train_step(
    model: ParallelModel,
    optimizer: Optimizer,
    objective: Objective,
    micro_batches: Sequence[Batch],
    *,
    lr: float,
    grad_clip: float | None,
    router_bias_rate: float,
    flags: Collection[str] = (),
    noise: Noise | None = None,
    on_gradients: Callable[[], None] = lambda: None,
    to_host: Callable[[Tensor], list[float]] = Tensor.tolist,
) -> StepResult:
    """Update the model on this rank's share of the global batch. All ranks call this together.

    `flags` are those that this rank raises. `noise` is what dropout draws from in this step. `on_gradients` is called
    when the whole gradient is there, not yet clipped.
    `to_host` brings numbers to the host; a dry run, whose tensors have no values, gives its own answer.
    """
    done = accumulate_gradients(model, objective, micro_batches, flags, noise)
    on_gradients()
    grad_norm = clip_grad_norm_(model.parameters(), grad_clip, model.world)
    all_finite = torch.isfinite(grad_norm) & torch.isfinite(done.losses).all()
    # The one wait for the device in a step: a step must not be taken on a NaN. What is small comes along.
    numbers = torch.cat((all_finite.double()[None], grad_norm.double()[None], done.losses, done.flags_F))
    finite, norm, *others = to_host(numbers)
    losses, raised = others[: -len(FLAGS)], others[-len(FLAGS) :]
    if finite:
        optimizer.set_lr(lr)
        optimizer.step()
        balance_routers(model, done.counts_LE, router_bias_rate)
    optimizer.zero_grad()
    return StepResult(
        dict(zip(objective.terms, losses, strict=True)),
        norm,
        done.counts_LE,
        done.dropped_LE,
        done.mean_attended_length,
        done.source_tokens_S,
        done.source_nll_S,
        bool(finite),
        frozenset(name for name, count in zip(FLAGS, raised, strict=True) if count),
    )


def accumulate_gradients(
    model: ParallelModel,
    objective: Objective,
    micro_batches: Sequence[Batch],
    flags: Collection[str] = (),
    noise: Noise | None = None,
) -> Accumulated:
    """Leave the global gradient in the parameters. All ranks call this together."""
    world, config = model.world, model.config
    sums = torch.stack([_sums_over_data(objective, batch) for batch in micro_batches]).sum(0)
    num_terms, num_sources = len(objective.terms), objective.num_sources
    of_data = world.sum(sums, "dp_replicate", "dp_shard")
    per_term, source_tokens_S, (squares, tokens) = of_data.split((num_terms, num_sources, 2))
    # A batch without a single label of some kind (all documents one token long) contributes 0, not 0 / 0.
    denominators = per_term.clamp_min(1)
    weights = torch.tensor(objective.weights, dtype=torch.float64, device=denominators.device)
    scales = (weights / denominators).float()
    # What ends in one sum over all ranks: the numerators, each source's loss, and the flags.
    of_model = torch.zeros(num_terms + num_sources + len(FLAGS), dtype=torch.float64, device=world.device)
    numerators, source_nll_S, flags_F = of_model.split((num_terms, num_sources, len(FLAGS)))
    flags_F.copy_(torch.tensor([float(name in flags) for name in FLAGS]))
    num_routers = config.num_moe_layers + objective.num_mtp
    counts_2LE = torch.zeros(2, num_routers, config.n_routed_experts, dtype=torch.int64, device=world.device)

    def run(part: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        output = run_section(part, received, objective, micro_batches[index], share, source_nll_S, noise)
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
    world.sum(of_model)
    return Accumulated(
        numerators / denominators, counts_LE, dropped_LE, squares / tokens, source_tokens_S, source_nll_S, flags_F
    )


def run_section(
    part: GlmMoe,
    received: Activations | None,
    objective: Objective,
    batch: Batch,
    share: TokenShare,
    source_nll_S: Tensor | None = None,
    noise: Noise | None = None,
) -> Any:
    """Forward of one section over the rank's tokens of a micro-batch."""
    device = batch.ids_BS.device
    tokens = None if noise is None else noise.of_samples(batch.sample_indices, share.seq_len, device)
    return part(
        share.inputs(batch.ids_BS, batch.documents(device), objective.num_mtp, tokens),
        received,
        head=objective.head(batch, share, source_nll_S),
        with_mtp=objective.num_mtp > 0,
        with_aux_loss=objective.with_aux_loss,
    )


def _sums_over_data(objective: Objective, batch: Batch) -> Tensor:
    """float64 [num_terms + S + 2]: denominators, each source's tokens, sum of squares and sum of document lengths."""
    lengths = [length for row in batch.document_lengths for length in row]
    attended = torch.tensor([sum(n * n for n in lengths), sum(lengths)], dtype=torch.float64)
    denominators = objective.denominators(batch)
    return torch.cat((denominators, objective.source_tokens(batch), attended.to(denominators.device)))


@torch.no_grad()
def balance_routers(model: ParallelModel, counts_LE: Tensor, rate: float) -> None:
    """Move every router's correction bias against its global load; `counts_LE` are in the order of the layers.

    Layers that did not run (MTP with weight 0) have no counts and keep their bias.
    """
    for number, moe in model.moe_layers().items():
        if number < len(counts_LE):
            update_router_bias(moe.gate.e_score_correction_bias, counts_LE[number], rate)
