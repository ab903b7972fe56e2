"""One optimizer step: gradients over micro-batches, clip, check, update, level the experts.

Shapes: L routers (MoE layers, MTP layers last), E experts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glmforge.backend.base import Backend
from glmforge.backend.objective import Objective
from glmforge.data.stream.batch import Batch
from glmforge.data.stream.plan import BatchRange
from glmforge.model.dropout import Noise
from glmforge.parallel.reducer import Reducer, read_together
from glmforge.training.votes import from_counts, to_counts

_NO_SAMPLES = BatchRange(0, 0)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step did, the same on all ranks but for the seconds.

    Attributes:
        losses: mean of each loss term over the global batch.
        grad_norm: of the whole gradient, before clipping.
        finite: whether everything was; if not, nothing was updated.
        counts_LE, dropped_LE: tokens per expert, and those dropped for lack of capacity (int64).
        mean_attended_length: sum of squared document lengths over their sum (float64 scalar).
        metrics: what else was summed over all ranks, float64 on the host: the objective's metrics, and vectors that
            hooks have added to the step's `Reducer`.
        votes: what some rank has requested; see `glmforge.training.votes`.
        lr: the learning rate.
        samples, tokens: the samples of the global batch and their tokens; added by the trainer, like what follows.
        seconds: of wall time, from asking for the batch to the end of the update, hooks excluded.
        data_seconds: the part of it spent waiting for the batch.
        extra: of each of the trainer's `extra_models`, the result of its own step.
    """

    losses: dict[str, float]
    grad_norm: float
    finite: bool
    counts_LE: Tensor
    dropped_LE: Tensor
    mean_attended_length: Tensor
    metrics: dict[str, Tensor]
    votes: frozenset[str]
    lr: float
    samples: BatchRange = _NO_SAMPLES
    tokens: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    extra: Mapping[str, "StepResult"] = field(default_factory=dict)

    @property
    def main_loss(self) -> float:
        """The mean of the objective's first term: what is watched for spikes, under any name."""
        return next(iter(self.losses.values()))


def train_step(
    backend: Backend,
    objective: Objective,
    micro_batches: Sequence[Batch],
    *,
    lr: float,
    grad_clip: float | None,
    router_bias_rate: float,
    votes: Collection[str] = (),
    reducer: Reducer | None = None,
    noise: Noise | None = None,
    on_gradients: Callable[[], None] = lambda: None,
    to_host: Callable[[Tensor], list[float]] = Tensor.tolist,
) -> StepResult:
    """Update the model on this rank's share of the global batch. All ranks call this together.

    `votes` are what this rank asks for. `reducer` may hold vectors of others, which are summed along and come back in
    `StepResult.metrics`; they may be added until `on_gradients` returns, which is called when the whole gradient is
    there, not yet clipped. `noise` is what dropout draws from in this step.
    `to_host` brings numbers to the host; a dry run, whose tensors have no values, gives its own answer.
    """
    reducer = reducer or Reducer(backend.world)
    batch = backend.accumulate(objective, micro_batches, noise)
    on_gradients()
    grad_norm = backend.clip(grad_clip)
    counts_LE, dropped_LE = batch.count_tokens()
    reducer.add("votes", to_counts(votes))
    losses, sums = batch.sum(reducer)
    all_finite = torch.isfinite(grad_norm) & torch.isfinite(losses).all()
    # The one wait for the device in a step: a step must not be taken on a NaN. What is small comes along.
    numbers = read_together({"finite": all_finite, "norm": grad_norm, "losses": losses} | sums, to_host)
    (finite,), (norm,), means, counts = (numbers.pop(name) for name in ("finite", "norm", "losses", "votes"))
    if finite:
        backend.step(lr)
        backend.balance_routers(counts_LE, router_bias_rate)
    backend.zero_grad()
    return StepResult(
        losses=dict(zip(objective.terms, means, strict=True)),
        grad_norm=norm,
        finite=bool(finite),
        counts_LE=counts_LE,
        dropped_LE=dropped_LE,
        mean_attended_length=batch.mean_attended_length,
        metrics={name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()},
        votes=from_counts(counts),
        lr=lr,
    )
