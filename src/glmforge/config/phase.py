"""`phases`: stretches of training, each with its own data, sequence length and balance.

Everything that follows from a phase alone is a function of the samples it has consumed: which batch size is due, how
many steps are left. A run therefore goes on at any sample, also after its batch size has been changed.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from glmforge.config.model import Strict, refuse
from glmforge.errors import ConfigError


class BatchSpan(NamedTuple):
    """`num_steps` steps of `batch_size` sequences; the first begins with the phase's sample `first_sample`."""

    first_sample: int
    batch_size: int
    num_steps: int

    @property
    def stop(self) -> int:
        return self.first_sample + self.batch_size * self.num_steps


MAX_RAMP_SIZES = 10_000
"""Most batch sizes of a ramp: every step of a schedule looks through them."""


class BatchRamp(Strict):
    """Batches that grow in equal steps: start, start + increment, ... up to the phase's batch_size."""

    start: PositiveInt = Field(description="initial sequences per step")
    increment: PositiveInt = Field(description="sequences added at each increase")
    tokens: PositiveInt = Field(
        description="tokens of the phase until the full batch size; each smaller size gets an equal share"
    )


def _default_bias_rate(earlier: dict[str, Any]) -> float:
    return 1e-3 if earlier.get("balance", "bias") == "bias" else 0.0


def _default_aux_weight(earlier: dict[str, Any]) -> float:
    return {"bias": 1e-4, "aux": 1e-2, "sinkhorn": 0.0}[earlier.get("balance", "bias")]


class PhaseConfig(Strict):
    """A stretch of training with one sequence length and mixture."""

    name: str = Field(min_length=1)
    tokens: PositiveInt | None = Field(default=None, description="length in tokens, rounded up to whole steps")
    steps: PositiveInt | None = Field(default=None, description="length in optimizer steps")
    epochs: PositiveFloat | None = Field(
        default=None,
        le=1_000_000,
        description="length in epochs of the source that finishes first",
    )
    seq_len: PositiveInt
    batch_size: PositiveInt = Field(description="global batch: sequences per optimizer step over all ranks")
    batch_ramp: BatchRamp | None = Field(default=None, description="None: batch_size from the first step")
    document_mask: bool = Field(default=True, description="attention and loss stop at document boundaries")
    packing: Literal["truncate", "best_fit", "single"] = Field(
        default="truncate",
        description="truncate: cut the token stream every seq_len tokens; best_fit: pack whole documents and cut "
        "only longer ones; single: one document per row, longer ones are refused",
    )
    fim_rate: float = Field(
        default=0.0, ge=0, le=1, description="fraction of documents from code sources turned into fill-in-the-middle"
    )
    sources: dict[str, PositiveFloat] | None = Field(
        default=None, min_length=1, description="source weights of this phase; sources not listed are not used"
    )
    rope_theta: PositiveFloat | None = Field(default=None, description="None: the model's")
    balance: Literal["bias", "aux", "sinkhorn"] = Field(
        default="bias",
        description="expert load balancing. bias: loss-free correction bias; aux: auxiliary loss only; sinkhorn: "
        "Sinkhorn-normalised routing per sequence",
    )
    router_bias_rate: NonNegativeFloat = Field(
        default_factory=_default_bias_rate,
        description="update rate of the correction bias; 0 freezes it. Default 1e-3 with balance: bias, else 0",
    )
    aux_loss_weight: NonNegativeFloat = Field(
        default_factory=_default_aux_weight,
        description="weight of the sequence-level balance loss. Default 1e-4 with balance: bias, 1e-2 with aux, 0 "
        "with sinkhorn",
    )
    mtp_loss_weight: NonNegativeFloat = 0.3
    z_loss_weight: NonNegativeFloat = Field(
        default=0.0, description="weight of the z-loss, mean (log Z)^2 of the next-token logits; PaLM uses 1e-4"
    )
    capacity_factor: PositiveFloat | None = Field(
        default=None,
        description="most tokens per expert, relative to the mean load of the tokens a rank routes at once; None: no "
        "tokens dropped",
    )

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a full batch."""
        return self.batch_size * self.seq_len

    @property
    def batch_spans(self) -> tuple[BatchSpan, ...]:
        """The phase as planned: stretches of steps of one batch size."""
        spans: list[BatchSpan] = []
        first, steps = 0, 0
        for size, due in self._planned_sizes():
            num_steps = min(due, self._steps_left(size, first, steps))
            if num_steps > 0:
                spans.append(BatchSpan(first, size, num_steps))
                first, steps = spans[-1].stop, steps + num_steps
        return tuple(spans)

    @property
    def batch_sizes(self) -> set[int]:
        """Of all batches; known also where only the data tell how many there are."""
        if self.epochs is not None:
            return {size for size, _ in self._planned_sizes()}
        return {self.batch_size, *(span.batch_size for span in self.batch_spans)}

    @property
    def num_steps(self) -> int:
        return sum(span.num_steps for span in self.batch_spans)

    @property
    def num_samples(self) -> int:
        """Sequences that the phase consumes, all ranks together."""
        return self.batch_spans[-1].stop

    def batch_size_at(self, sample: int) -> int:
        """Sequences of the batch that begins with the phase's sample `sample`."""
        return next((span.batch_size for span in self.batch_spans if sample < span.stop), self.batch_size)

    def steps_before(self, sample: int) -> int:
        """Steps that take the phase's samples before `sample`, as planned; all of them if it has fewer."""
        taken = ((max(0, sample - span.first_sample), span) for span in self.batch_spans)
        return sum(min(span.num_steps, -(-samples // span.batch_size)) for samples, span in taken)

    def _planned_sizes(self) -> Iterator[tuple[int, int]]:
        """Batch sizes in turn and for how many steps each, the last for as long as there are steps."""
        ramp = self.batch_ramp
        if ramp is not None:
            sizes = range(ramp.start, self.batch_size, ramp.increment)
            for size in sizes:
                yield size, math.ceil(ramp.tokens / len(sizes) / (size * self.seq_len))
        yield self.batch_size, 2**62

    def _steps_left(self, size: int, first: int, steps: int) -> int:
        """Steps of `size` that are left of the phase after `steps` steps and `first` samples."""
        if self.steps is not None:
            return self.steps - steps
        if self.tokens is None:
            raise ConfigError(
                f"phase '{self.name}': is {self.epochs:g} epochs long, and the data that define an epoch are not "
                "read here; set tokens or steps instead (epochs=null steps=1000)"
            )
        return -(-(self.tokens - first * self.seq_len) // (size * self.seq_len))

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        given = [name for name in ("tokens", "steps", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            refuse(
                "tokens",
                "set exactly one of 'tokens', 'steps' and 'epochs'; "
                f"{' and '.join(given) or 'none'} set in phase '{self.name}' (null unsets)",
            )
        return self

    @model_validator(mode="after")
    def _check_ramp(self) -> Self:
        ramp = self.batch_ramp
        if ramp is None:
            return self
        if (self.batch_size - ramp.start) // ramp.increment > MAX_RAMP_SIZES:
            refuse("batch_ramp.increment", f"{ramp.increment} makes over {MAX_RAMP_SIZES:,} sizes; take a larger one")
        if ramp.start >= self.batch_size or (self.batch_size - ramp.start) % ramp.increment:
            refuse(
                "batch_ramp.start",
                f"{ramp.start} does not grow to batch_size {self.batch_size} in steps of {ramp.increment}; make "
                "batch_size - start a multiple of increment",
            )
        return self

    @model_validator(mode="after")
    def _check_balance(self) -> Self:
        if self.balance != "bias" and self.router_bias_rate:
            refuse(
                "router_bias_rate",
                f"{self.router_bias_rate:g} updates biases, but balance is '{self.balance}'; remove it, or set "
                "balance to 'bias'",
            )
        if self.balance == "aux" and not self.aux_loss_weight:
            refuse(
                "aux_loss_weight",
                "0 disables all balancing with balance: aux; set a weight such as 1e-2",
            )
        return self
